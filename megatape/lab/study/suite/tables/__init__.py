"""A suite's tables and result files.

suite_results.py   results of a suite, shown and written
sections.py        sections: text and tables
cell_text.py       text of the tables' cells
result_files.py    files of the results
"""
