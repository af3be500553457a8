"""What failed, who is to blame, is another try worth it? Read from what ranks and devices say, and knowing nothing of the job.

`diagnose` gives the verdict on the ranks of one attempt, `read_log` makes ranks of the log of any job, `explain` says what is
known of a text, and a `PatternBook` holds the patterns (`config.catalog_files.load_pattern_book`).
"""

from ftslurm.policies.diagnose.classify import diagnose
from ftslurm.policies.diagnose.findings import explain
from ftslurm.policies.diagnose.hits import Facts
from ftslurm.policies.diagnose.joblog import read_log

__all__ = ["Facts", "diagnose", "explain", "read_log"]
