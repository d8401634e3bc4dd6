"""Reports: step_metrics.py and reporter.py about steps, start_report.py about the start, speed.py and hardware.py for both.

recorded_steps.py reads metrics of an earlier process, and environment_record.py describes software, ranks and device.
"""
