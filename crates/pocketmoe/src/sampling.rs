//! From logits to the next token.

use crate::forward::greedy;
use crate::router::softmax;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// How a request wants its tokens chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sampling {
    /// 0 takes the most likely token.
    pub(crate) temperature: f32,
    /// Keep the most likely tokens until they have this share, over 0 and up to 1.
    pub(crate) top_p: f32,
    /// Keep this many of the most likely tokens; nothing keeps all.
    pub(crate) top_k: Option<usize>,
    /// Seed of this request; nothing lets the server's seed and the request's number decide.
    pub(crate) seed: Option<u64>,
}

/// Chooses the tokens of one sequence.
pub(crate) struct Sampler {
    sampling: Sampling,
    random: ChaCha8Rng,
}

impl Sampler {
    /// A sampler for request `number` of a server with `server_seed`.
    pub(crate) fn new(sampling: Sampling, server_seed: u64, number: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(sampling.seed.unwrap_or(server_seed));
        random.set_stream(if sampling.seed.is_some() { 0 } else { number });
        Self { sampling, random }
    }

    /// The next token.
    pub(crate) fn choose(&mut self, logits: &[f32]) -> u32 {
        let Sampling { temperature, top_p, top_k, .. } = self.sampling;
        if temperature <= 0.0 || top_k == Some(1) {
            return greedy(logits);
        }
        let mut shares: Vec<f32> = logits.iter().map(|logit| logit / temperature).collect();
        softmax(&mut shares);
        let mut order: Vec<usize> = (0..shares.len()).collect();
        order.sort_unstable_by(|a, b| shares[*b].total_cmp(&shares[*a]).then(a.cmp(b)));
        order.truncate(top_k.unwrap_or(order.len()));
        let mut kept = 0.0;
        let enough = order.iter().position(|id| {
            kept += shares[*id];
            kept >= top_p
        });
        order.truncate(enough.map_or(order.len(), |last| last + 1));
        let total: f32 = order.iter().map(|id| shares[*id]).sum();
        let mut left = (self.random.next_u32() >> 8) as f32 / (1 << 24) as f32 * total;
        for id in &order {
            left -= shares[*id];
            if left < 0.0 {
                return *id as u32;
            }
        }
        order[order.len() - 1] as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREEDY: Sampling = Sampling { temperature: 0.0, top_p: 1.0, top_k: None, seed: None };

    fn draws(sampling: Sampling, number: u64) -> Vec<u32> {
        let mut sampler = Sampler::new(sampling, 1, number);
        (0..200).map(|_| sampler.choose(&[0.0, 1.0, 2.0, 1.9])).collect()
    }

    #[test]
    fn temperature_zero_is_greedy() {
        assert_eq!(draws(GREEDY, 0), [2; 200]);
    }

    #[test]
    fn a_temperature_draws_by_share_and_the_limits_hold() {
        let warm = Sampling { temperature: 1.0, ..GREEDY };
        let counts = draws(warm, 0).iter().fold([0; 4], |mut counts, id| {
            counts[*id as usize] += 1;
            counts
        });
        assert!(counts[2] > counts[1] && counts[1] > counts[0], "{counts:?}");
        assert!(draws(Sampling { top_k: Some(2), ..warm }, 0).iter().all(|id| *id >= 2));
        assert!(draws(Sampling { top_p: 0.5, ..warm }, 0).iter().all(|id| *id >= 2));
    }

    #[test]
    fn seeds_reproduce() {
        let warm = Sampling { temperature: 1.0, ..GREEDY };
        assert_eq!(draws(warm, 3), draws(warm, 3));
        assert_ne!(draws(warm, 3), draws(warm, 4));
        let seeded = Sampling { seed: Some(9), ..warm };
        assert_eq!(draws(seeded, 3), draws(seeded, 4));
    }
}
