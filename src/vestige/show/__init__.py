"""What is printed and drawn: tables, figures in files, progress. No package below the verbs may know what a report is.

tables     table(rows, heads) for a terminal; Table and its FORMATS (Markdown, LaTeX, CSV), paper_table;
           summary(...), describe(...): the numbers of one run as a terminal shows them
figures    curves, heat_map, layer_profile, collapse_curves, recovery_curve -> Figure; save(figure, path)
progress   Bar, bars, hushed
"""
