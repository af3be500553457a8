# One rank of the in-place benchmark: says when it starts; rank 3 fails some times, the others wait to be stopped.
# $1 folder for the marks, $2 how many failures. bash for EPOCHREALTIME: `date` would cost as much as what is measured.
rank=${SLURM_PROCID:-$RANK}
run=${MA_PROC_START_CNT:-$((TORCHELASTIC_RESTART_COUNT + 1))}
echo "$run start $EPOCHREALTIME" >>"$1/$rank"
if [ "$run" -gt "$2" ]; then exit 0; fi
if [ "$rank" = 3 ]; then
    sleep "${FAIL_AFTER:-0.5}"
    echo "$run exit $EPOCHREALTIME" >>"$1/$rank"
    exit 1
fi
exec sleep 1000
