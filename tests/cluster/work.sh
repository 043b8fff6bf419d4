#!/bin/bash
# work.sh DIR SECONDS [CODE]: says in DIR/<job> where and in which environment it runs, sleeps, and ends: its first
# run with CODE, later ones with 0.
file=$1/${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}_${SLURM_ARRAY_TASK_ID:-}
echo "start $SLURMD_NODENAME ${SLURM_RESTART_COUNT:-0}" >>"$file"
env >"$file.env"
sleep "$2" &
wait $!
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] && exit "${3:-0}"
exit 0
