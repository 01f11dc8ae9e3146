"""Rows from wherever they live, and the token ids a model sees of them.

load_rows(hf_args) -> rows, source           files, a directory, a hub id, objects in memory       (rows)
build_rows(name, config, context) -> Rows    Examples: prompt, answer, target tokens               (datasets)
Encoder, Template                            the only place that tokenises questions and answers   (chat)
read_spans, encode_span                      where in an answer the fact sits (depth score)         (spans)
grouping, with_clusters                      which rows belong together, for intervals             (clusters)
"""
