#!/bin/sh
# @key@ of slurm.conf; written by `ftslurm install-hooks`.
# Started by the others as the owner of a job, to read that job's ledger with no more rights than its owner.
# Where Slurm's configuration lies was settled when this was written, and no variable gets through: whoever may start this
# names nothing that Slurm loads a plug-in by.
cd /
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 @owner_conf@\
    @python@ -I -m ftslurm.hooks.as_owner @config@ "$@"
