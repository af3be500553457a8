"""The shim: parent of one task's command. Standard library only, and one file where it runs: also inside containers.

`srun ... python -I -S -c "from _shim import main; main()" -- command args` stands where the command stood. The shim
calls the controller, runs the command when told to, reports how it ended, stops it with everything it left behind, runs
it again, and at last ends as the command did. It never starts anything by itself, and it outlives the controller only to
clean up. What the rank prints passes through it unchanged; the last of it, and the first that looks like an error, is
told when the rank fails.

A broken connection is replaced, and no message is lost or heard twice. The command runs on a lease that the
controller's answers renew; when it runs out, all is killed here, by the shim or, should that be stopped, by the kernel.
But for a suspended job: Slurm announces that (SIGTSTP, two seconds ahead), the shim asks the controller to wait for it
however long it takes, and only where the controller has said yes the lease does not run out meanwhile.

Threads: one forks, waits and talks to the controller, so death by PR_SET_PDEATHSIG stays bound to the shim as a whole;
the pumps only read, note and write, one dials after a break, and nobody ever waits for any of them.

Proof that nothing is left: the shim is the subreaper of its tree (prctl(2)), so whatever leaves its parent becomes a
child of the shim. When wait says ECHILD no descendant is left, also none that forked, daemonised or renamed itself.

The modules of this package are the source. `tools/one-shim` joins them to `_shim.py`, which the launchers run: eight
ranks a node that open one file each start sooner from a shared file system than eight that open twenty. Agent and
controller import the parts that they share with it (signed connection, session, lease, process tree) from here.
"""
