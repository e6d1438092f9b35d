#!/bin/bash
# Stacks of a job's processes on this node, twice, as files that `hangscope-snapshotter analyze FOLDER` reads.
# For clusters without agents. On all nodes of job J at once, as the job's user or root:
#
#     srun --jobid=J --overlap --ntasks-per-node=1 gather.sh /shared/hang-J J
#     hangscope-snapshotter analyze /shared/hang-J --format html -o hang-J.html
#
# Without a job, the processes of all jobs of the node. HANGSCOPE_BIN: where the programs are, if not on PATH.
set -eu
folder=${1:?gather.sh FOLDER [JOB]}
job=${2:-}
[ -z "${HANGSCOPE_BIN:-}" ] || PATH=$HANGSCOPE_BIN:$PATH
for program in hangscope-exporter py-spy; do
    command -v "$program" >/dev/null || { echo "gather.sh: no $program on PATH of $(hostname): set HANGSCOPE_BIN" >&2; exit 1; }
done
mkdir -p "$folder/second"

# Lines of PID and file name.
processes() {
    hangscope-exporter list-ranks --format json | python3 -c '
import json, sys
seen = json.load(sys.stdin)
for one in seen["processes"]:
    if sys.argv[1] not in ("", one["job_id"]) or one["rank"] is None:
        continue
    kind = {"trainer": "", "dataloader": ".dataloader-%s" % one["worker"]}.get(one["role"])
    if kind is not None:
        print(one["pid"], "%s-rank-%d%s.json" % (seen["node"], one["rank"], kind))
' "$job"
}

# All at once: a rank that spins leaves each py-spy a small share of the processor.
take() {
    while read -r pid name; do
        # Non-blocking: stops no rank. A file of zero bytes would be a rank without a stack; there is none instead.
        { timeout --kill-after=2 15 py-spy dump --json --nonblocking --pid "$pid" >"$1/.$name" \
            && mv "$1/.$name" "$1/$name"; } || { rm -f "$1/.$name"; echo "no stack of $name (pid $pid)" >&2; } &
    done <<<"$found"
    wait
}

found=$(processes)
[ -n "$found" ] || { echo "no rank of job ${job:-any} on $(hostname): see hangscope-exporter list-ranks" >&2; exit 1; }
take "$folder"
sleep "${HANGSCOPE_INTERVAL:-5}"
take "$folder/second"
