"""Commands that look ahead: what settings would do, without a job."""
