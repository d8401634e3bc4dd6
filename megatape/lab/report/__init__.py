"""Pages about runs and data directories, and the terminal view of runs.

Reading
run.py, load.py      a run directory: configuration, metrics, events, data indices

The page about runs (page.py, assets/page.html), from top to bottom
progress.py          state and headline numbers of each run; run_state.py judges the state
curves.py            the charts; charts.py has their records, groups.py the groups of runs sharing a line
history.py           events
evaluations.py       tables and pictures of `megatape evaluate`
positions.py         position views
setup_tables.py      overview, data, differences between configurations
time_table.py        where the time of runs went

Other views
monitor.py           `megatape monitor`, in a terminal
data_page.py         the page about a data directory
summary.py           the last lines of launch/quickstart.py

Rendering
template.py          fills in a template and embeds its scripts
assets/base.html     frame of every page; table.html and legend.html are macros
assets/*.html        page.html, data.html and suite.html (megatape/lab/study/suite/page.py) extend the frame
assets/chart.js      charts; layout.js prepares curves and scales, numbers.js formats numbers
assets/controls.js   buttons and reloading; view.js remembers the reader's choices
assets/positions.js  position views
"""
