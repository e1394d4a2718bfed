#!/usr/bin/env bash
# Run the leaderboard's larger workloads: tune each one, then train all arms, seed by seed over all workloads.
#
#     nice -n 19 benchmarks/larger.sh DATA [SEEDS] [RECORDS]
#
# DATA holds mnist/, fashion_mnist/, svhn/ and cifar10/, each with train.parquet and test.parquet, and wordnet/data.noun.
# It can be stopped at any time: started again, it does what is missing, and loses the run that was under way. Three seeds
# take about 27 hours of one core, of which tuning takes 7. RECORDS is benchmarks/results/larger by default; its
# PROTOCOL.md says what is run and why.
set -euo pipefail
data=$1 seeds=${2:-3} records=${3:-$(dirname "$0")/results/larger}
export OMP_NUM_THREADS=1
# Without these, each step returns the memory of large tensors to the system and asks for it again: a fifth of the time.
export MALLOC_MMAP_THRESHOLD_=1000000000 MALLOC_TRIM_THRESHOLD_=8000000000
workloads="mnist-resnet8 svhn-resnet8 fashion-resnet8 mnist-resnet8-noisy svhn-resnet8-noisy cifar10-fast text-transformer
    svhn-resnet20 cifar10-resnet20"
for number in $(seq "$seeds"); do
    for workload in $workloads; do
        if [ ! -e "$records/$workload.chosen.json" ]; then
            selective-backprop leaderboard tune "$workload" --data-dir "$data" --records "$records"
        fi
        selective-backprop leaderboard run "$workload" --data-dir "$data" --records "$records" --seeds "$number"
    done
done
