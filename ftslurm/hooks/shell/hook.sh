#!/bin/sh
# @key@ of slurm.conf; written by `ftslurm install-hooks`.
# Its own trouble is nobody's: whatever happens in here, the status is 0 unless the node is proven bad.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
@conf@cd /
timeout --kill-after=2 @limit@ @python@ -I -m ftslurm.hooks.@name@ @config@ @folder@ </dev/null
status=$?
[ $status -eq @bad@ ] && exit 1
said="@name@: ended with status $status (124, 137: cut off after @limit@ s); nothing was concluded"
[ $status -eq 0 ] || logger -t ftslurm "$said" 2>/dev/null
exit 0
