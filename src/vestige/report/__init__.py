"""One page from any mixture of finished runs: did it forget?

    paths --gather--> runs --identify_models--> models --build_report--> report.json --render_page--> index.html

Interface (modules in the order in which data pass through them):

    gather     gather(paths) -> FoundRuns: evaluations, depth runs, attacks, ... as records; what could not be read.
               The only module that reads files of runs. row_traces(run) for figures of denoising.
    models     identify_models(found) -> Models: who is who, with the runs of each; values and axes of a model.
    rows       said_rows, distributions, roc_curves: what an audited model's rows show.
    audits     audit(models, found, model) -> one entry of `audits`: panels, what is missing, the verdict.
    sections   trajectories, training, collapse, meta_evaluation: the other sections of the page.
    metrics    describe_metric(key) -> a metric in words.
    build      ReportRequest; build_report(request) -> data; write_report(request) -> report.json and index.html;
               read_report(path); check_report(data).
    page       render_page(report) -> HTML: one file with its data, scripts and style. page/ holds the scripts.
    tables     models_table, meta_table -> show.tables.Table.
    figures    draw(report, what, choice, path): one of FIGURES as a file.
    view       Viewer(request): the page served on this machine and rebuilt when runs change.
    verify     check_report(path) -> findings: does a report still say what its runs say?

report.json is plain JSON, described in docs/report.md. Tables, figures and the page read nothing but this.
"""
