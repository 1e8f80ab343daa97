//! What must hold of every plan.

use super::*;
use crate::plan;

/// A spec of `arms` arms and `levels` levels.
fn sized(arms: u32, levels: u32, passes: u32, seed: u64) -> Spec {
    let arms: Vec<String> = (0..arms).map(|arm| format!("a{arm}: v{arm}")).collect();
    let levels: Vec<String> = (1..=levels).map(|level| level.to_string()).collect();
    let text = BASE
        .split("claims:")
        .next()
        .expect("a part")
        .replace(ARMS, &format!("arms: {{{}}}", arms.join(", ")))
        .replace("control: a", &format!("control: a0\npasses: {passes}"))
        .replace("concurrency: [1, 10]", &format!("concurrency: [{}]\n  seed: {seed}", levels.join(", ")));
    read("x.yaml", &text, Path::new("")).expect("a spec").0
}

#[test]
fn a_plan_without_blocks_is_empty_and_a_retry_keeps_the_order() {
    let spec = base();
    assert!(plan::blocks(&spec, 1, 0).is_empty());
    let (first, again) = (plan::blocks(&spec, 3, 1), plan::retry_block(&spec, 3, 2));
    let arms =
        |sessions: &[plan::PlannedSession]| sessions.iter().map(|session| session.arm.clone()).collect::<Vec<_>>();
    assert_eq!(arms(&first), arms(&again));
    assert!(again.iter().all(|session| session.name == format!("b03-{}.2", session.arm) && session.attempt == 2));
    assert_eq!(first[0].trials, again[0].trials);
    let look = plan::look(&spec, "b", &spec.question.levels[1]);
    assert_eq!((look.name.as_str(), look.trials.len(), look.trials[0].num_prompts), ("look-b-c0010", 1, 80));
    assert_eq!(look.trials[0].seed, 43);
    let json = plan::plan(&spec).to_json();
    assert_eq!(json["sessions"].as_array().expect("a list").len(), 12);
    assert_eq!(json["sessions"][0]["trials"][0]["request_rate"], serde_json::Value::Null);
}

#[test]
fn blocks_go_round_the_hosts_and_primes_go_to_each() {
    let text = changed("title: T", "title: T\nhost: [one, two]");
    let (spec, _) = read("x.yaml", &text, Path::new("")).expect("a spec");
    let planned = plan::plan(&spec);
    let mut names: Vec<&str> = planned.sessions.iter().map(|session| session.name.as_str()).collect();
    assert_eq!(planned.sessions.iter().filter(|session| session.kind == plan::Kind::Prime).count(), 4);
    for session in &planned.sessions {
        let wanted = session.block.map(|block| if block % 2 == 1 { "one" } else { "two" });
        assert!(wanted.is_none_or(|wanted| wanted == session.host));
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), planned.sessions.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_group_of_blocks_is_balanced(arms in 2_u32..6, blocks in 1_u32..13, seed in 0_u64..1000) {
        let spec = sized(arms, 3, 1, seed);
        let sessions = plan::blocks(&spec, 1, blocks);
        prop_assert_eq!(&sessions, &plan::blocks(&spec, 1, blocks), "reproducible");
        for arm in spec.question.arms.keys() {
            for position in 1..=arms {
                let count = sessions.iter().filter(|session| session.arm == *arm && session.position == position).count() as u32;
                prop_assert!(count == blocks / arms || count == blocks / arms + 1);
                prop_assert!(blocks % arms != 0 || count == blocks / arms);
            }
        }
    }

    #[test]
    fn the_arms_of_a_block_meet_the_same_conditions(arms in 2_u32..5, levels in 1_u32..6, passes in 1_u32..4, block in 1_u32..40) {
        let spec = sized(arms, levels, passes, 1);
        let sessions = plan::blocks(&spec, block, 1);
        prop_assert!(sessions.iter().all(|session| session.trials == sessions[0].trials));
        let mut labels: Vec<&str> = sessions[0].trials.iter().map(|trial| trial.label.as_str()).collect();
        prop_assert_eq!(labels.len() as u32, levels * passes);
        labels.sort_unstable();
        labels.dedup();
        prop_assert_eq!(labels.len() as u32, levels * passes);
        prop_assert!(sessions[0].trials.iter().all(|trial| trial.seed == 1 + u64::from(trial.pass)));
    }
}
