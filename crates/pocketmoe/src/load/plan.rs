//! What will be sent: a pure function of the seed and the lengths, so that a workload can be hashed before it runs.

use crate::VOCABULARY;
use crate::vocabulary::{decode, encode};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;
use std::time::Duration;

/// One request of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedRequest {
    /// Its text; words of the pocket vocabulary, one token each.
    pub prompt: String,
    /// Tokens of the prompt.
    pub input_tokens: usize,
    /// Tokens asked for.
    pub output_tokens: usize,
}

/// `count` requests of random words.
///
/// Lengths are uniform from `max(⌊length · range_ratio⌋, 1)` to `length`, as in `sglang.bench_serving` since 0.5.7. The
/// random numbers are this crate's own, so the prompts are not those of that client. A longer plan with the same seed
/// starts with the shorter one.
pub fn plan_requests(
    seed: u64,
    count: usize,
    input_len: usize,
    output_len: usize,
    range_ratio: f64,
) -> Vec<PlannedRequest> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let length = |most: usize, random: &mut ChaCha8Rng| {
        let least = ((most as f64 * range_ratio) as usize).clamp(1, most.max(1));
        least + below(random, most.max(1) - least + 1)
    };
    (0..count)
        .map(|_| {
            let input_tokens = length(input_len, &mut random);
            let output_tokens = length(output_len, &mut random);
            let ids: Vec<u32> = (0..input_tokens).map(|_| below(&mut random, VOCABULARY) as u32).collect();
            PlannedRequest { prompt: decode(&ids), input_tokens, output_tokens }
        })
        .collect()
}

/// A whole number from 0 to `end - 1`, without bias that matters here (`end` is far below 2^32).
fn below(random: &mut ChaCha8Rng, end: usize) -> usize {
    ((u128::from(random.next_u64()) * end as u128) >> 64) as usize
}

/// The first `count` requests of JSON lines with `prompt` and `output_len`.
///
/// # Errors
///
/// When a line is not such an object, a prompt is empty, or there is no line; the text names the line.
pub fn read_requests(text: &str, count: usize) -> Result<Vec<PlannedRequest>, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Line {
        prompt: String,
        output_len: usize,
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).take(count);
    let requests = lines.map(|(number, line)| {
        let number = number + 1;
        let line: Line = serde_json::from_str(line).map_err(|error| format!("line {number}: {error}"))?;
        let input_tokens = encode(&line.prompt).len();
        if input_tokens == 0 || line.output_len == 0 {
            return Err(format!("line {number}: prompt and output need at least one token each"));
        }
        Ok(PlannedRequest { prompt: line.prompt, input_tokens, output_tokens: line.output_len })
    });
    let requests: Vec<_> = requests.collect::<Result<_, String>>()?;
    if requests.len() < count {
        return Err(format!("{} requests, fewer than `--num-prompts {count}`; lower it", requests.len()));
    }
    Ok(requests)
}

/// Gaps between the starts of requests; endless, or empty for an infinite rate.
pub(super) struct Arrivals {
    random: ChaCha8Rng,
    rate: f64,
}

impl Arrivals {
    /// Exponential gaps with `rate` requests a second, from a stream of the seed that prompts do not use.
    pub(super) fn new(seed: u64, rate: f64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(1);
        Self { random, rate }
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        if self.rate.is_infinite() {
            return None;
        }
        let unit = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        Duration::try_from_secs_f64(-(1.0 - unit).ln() / self.rate).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_requests_are_an_empty_plan() {
        assert!(plan_requests(1, 0, 16, 16, 0.5).is_empty());
        assert_eq!(read_requests("", 0), Ok(vec![]));
        assert!(read_requests("\n", 1).is_err());
    }

    #[test]
    fn a_plan_is_a_function_of_its_seed_and_starts_with_the_shorter_one() {
        let plan = plan_requests(42, 20, 64, 32, 0.25);
        assert_eq!(plan, plan_requests(42, 20, 64, 32, 0.25));
        assert_eq!(plan[..7], plan_requests(42, 7, 64, 32, 0.25));
        assert_ne!(plan, plan_requests(43, 20, 64, 32, 0.25));
        for request in &plan {
            assert_eq!(encode(&request.prompt).len(), request.input_tokens);
            assert!((16..=64).contains(&request.input_tokens) && (8..=32).contains(&request.output_tokens));
        }
    }

    #[test]
    fn a_ratio_of_one_fixes_the_lengths_and_zero_allows_one() {
        let fixed = plan_requests(1, 50, 16, 32, 1.0);
        assert!(fixed.iter().all(|request| (request.input_tokens, request.output_tokens) == (16, 32)));
        let free = plan_requests(1, 200, 3, 3, 0.0);
        let lengths: std::collections::BTreeSet<_> = free.iter().map(|request| request.input_tokens).collect();
        assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn gaps_have_the_mean_of_their_rate() {
        assert_eq!(Arrivals::new(1, f64::INFINITY).next(), None);
        let total: Duration = Arrivals::new(1, 50.0).take(5000).sum();
        assert!((total.as_secs_f64() - 100.0).abs() < 5.0, "{total:?}");
    }

    #[test]
    fn a_file_is_read_up_to_the_count_and_its_errors_name_the_line() {
        let text = "{\"prompt\": \"w1 w2\", \"output_len\": 3}\n\n{\"prompt\": \"w1\", \"output_len\": 0}\n";
        assert_eq!(read_requests(text, 1).unwrap()[0].input_tokens, 2);
        assert!(read_requests(text, 2).unwrap_err().contains("line 3"));
    }
}
