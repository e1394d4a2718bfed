#!/usr/bin/env bash
# The comparisons in benchmarks/results: about three hours on two cores, with nothing else on the machine.
#
#     benchmarks/compare.sh DATA OUT
#
# DATA holds mnist/, svhn/, cifar10/ and fashion_mnist/, each with train.parquet and test.parquet.
#
# Each comparison leaves its own report.html; one page of all of them, as in benchmarks/results, is made by
#
#     selective-backprop report OUT -o report.html
set -euo pipefail
data=$1 out=$2

run() {  # name, recipe, share of the loss for the ledger, seeds, more
    selective-backprop compare --recipe "$2" --data-dir "$data" --seeds "$4" --out "$out/$1" \
        --method traditional --method sb:warmup_epochs=1 --method stale:every=3,warmup_epochs=1 \
        --method "ledger:loss_share=$3" --method kath18 --method random --method infobatch \
        --budget ledger --budget-by compute "${@:5}"
}

for seeds in 1 2; do  # the second time only the second seed is missing
    # Twice the ledger's compute, too, where the goal is to need half as much as plain training.
    run mnist mnist_small 0.9 $seeds --budget-times 1 --budget-times 2
    run svhn svhn_small 0.8 $seeds --budget-times 1 --budget-times 2
    run cifar10 cifar10_small 0.9 $seeds
    run fashion_mnist fashion_mnist_small 0.9 $seeds
    run mnist_16_epochs mnist_small 0.9 $seeds --epochs 16 --budget-times 1 --budget-times 2
done
run mnist mnist_small 0.9 4 --budget-times 1 --budget-times 2
selective-backprop compare --recipe svhn_small --model resnet20 --epochs 12 --data-dir "$data" --out "$out/svhn_resnet20" \
    --seeds 1 --method traditional --method ledger:loss_share=0.8 --budget ledger --budget-by compute --budget-times 2
