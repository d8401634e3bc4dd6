"""Makes data directories from others.

merge.py merges directories into a new one (directory_merger.py, merge_checks.py), append.py adds documents to a directory in
place, and subset.py selects documents (document_filter.py). All of them read their inputs through input_folder.py.
"""
