//! How often each method claims a difference where there is none, and how fast that can be asked.

use super::super::rivals::{bootstrap_interval, welch_p};
use super::*;

/// One block of each arm with no true difference: drift between blocks, launches, passes (shares, log scale).
fn null_blocks(random: &mut Random, blocks: usize, control: &mut Vec<f64>, treatment: &mut Vec<f64>) {
    control.clear();
    treatment.clear();
    for _ in 0..blocks {
        let drift = 0.015 * random.normal();
        for arm in [&mut *control, &mut *treatment] {
            arm.push(1000.0 * (drift + 0.005 * random.normal() + 0.003 * random.normal()).exp());
        }
    }
}

#[test]
fn paired_blocks_keep_their_promise_where_the_bootstrap_does_not() {
    const SIMULATIONS: usize = 4_000;
    for (blocks, bootstrap_at_least) in [(3, 0.25), (5, 0.12), (10, 0.075)] {
        let mut random = Random::new(20_240_607);
        let (mut control, mut treatment) = (vec![], vec![]);
        let (mut paired, mut bootstrap) = (0, 0);
        for _ in 0..SIMULATIONS {
            null_blocks(&mut random, blocks, &mut control, &mut treatment);
            paired += usize::from(paired_fieller(&control, &treatment, 0.95).expect("a result").p < 0.05);
            let (low, high) = bootstrap_interval(&control, &treatment, &mut random);
            bootstrap += usize::from(low > 0.0 || high < 0.0);
        }
        let rate = |count: usize| count as f64 / SIMULATIONS as f64;
        assert!((0.035..=0.065).contains(&rate(paired)), "{blocks} blocks: paired {}", rate(paired));
        assert!(rate(bootstrap) > bootstrap_at_least, "{blocks} blocks: bootstrap {}", rate(bootstrap));
    }
}

#[test]
fn passes_of_one_launch_are_not_launches() {
    const SIMULATIONS: usize = 2_000;
    let mut random = Random::new(7);
    let false_claims = (0..SIMULATIONS)
        .filter(|_| {
            let mut passes = || {
                let launch = 0.01 * random.normal();
                (0..5).map(|_| 1000.0 * (launch + 0.005 * random.normal()).exp()).collect::<Vec<f64>>()
            };
            welch_p(&passes(), &passes()) < 0.05
        })
        .count();
    let rate = false_claims as f64 / SIMULATIONS as f64;
    assert!((0.57..=0.67).contains(&rate), "{rate}");
}

#[test]
fn four_thousand_comparisons_of_ten_blocks_take_less_than_a_second() {
    let mut random = Random::new(1);
    let (mut control, mut treatment) = (vec![], vec![]);
    let mut spent = std::time::Duration::ZERO;
    for _ in 0..4_000 {
        null_blocks(&mut random, 10, &mut control, &mut treatment);
        let started = std::time::Instant::now();
        let found = paired_fieller(&control, &treatment, 0.95).expect("a result");
        let log = paired_log_ratio(&control, &treatment, 0.95).expect("a result");
        spent += started.elapsed();
        assert!(found.p.is_finite() && log.p.is_finite());
    }
    // Twice the promise, for machines that are busy.
    assert!(spent.as_secs_f64() < 2.0, "{spent:?}");
}
