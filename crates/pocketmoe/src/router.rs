//! The router: which experts a token uses and with which weights, and opportunistic expert activation (OEA).
//!
//! Source of OEA: arXiv 2511.02237 in its form with one parameter `k0`. Phase 1 gives each token of a decode batch its
//! `k0` best experts; phase 2 lets it keep a lower-ranked one of its `top_k` only if some token's phase 1 reads it
//! anyway. The kept scores are renormalised. Fewer distinct experts are read, which is what memory-bound decoding pays for.

use std::str::FromStr;

/// How router outputs become scores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Scoring {
    /// Softmax over all experts.
    #[default]
    Softmax,
    /// A logistic function of each output.
    Sigmoid,
}

impl Scoring {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Softmax => "softmax",
            Self::Sigmoid => "sigmoid",
        }
    }
}

/// Opportunistic expert activation as asked for by the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oea {
    /// Experts that each token keeps whatever the others do, 1 to `top_k`.
    pub k0: usize,
    /// Smallest decode batch to which it applies.
    pub min_batch: usize,
}

/// A variable that cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{name}` is `{value}`, want an integer from {low} to {high}; correct it, or unset it")]
pub struct InvalidVariable {
    name: &'static str,
    value: String,
    low: usize,
    high: usize,
}

impl Oea {
    /// Reads the two variables' values (`SGLANG_OEA_K0`, `SGLANG_OEA_MIN_BATCH`); off when the first is absent.
    ///
    /// # Errors
    ///
    /// When a value is not an integer in its range; the second is judged even when the first is absent.
    pub fn from_values(
        k0: Option<&str>,
        min_batch: Option<&str>,
        top_k: usize,
    ) -> Result<Option<Self>, InvalidVariable> {
        let min_batch = min_batch.map(|value| integer("SGLANG_OEA_MIN_BATCH", value, 1_000_000)).transpose()?;
        let k0 = k0.map(|value| integer("SGLANG_OEA_K0", value, top_k)).transpose()?;
        Ok(k0.map(|k0| Self { k0, min_batch: min_batch.unwrap_or(1) }))
    }
}

fn integer(name: &'static str, value: &str, high: usize) -> Result<usize, InvalidVariable> {
    match usize::from_str(value) {
        Ok(number) if (1..=high).contains(&number) => Ok(number),
        _ => Err(InvalidVariable { name, value: value.into(), low: 1, high }),
    }
}

/// Experts of a batch of tokens: token `t` has pairs `starts[t]..starts[t + 1]`, best first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Routes {
    /// One more than there are tokens.
    pub(crate) starts: Vec<usize>,
    /// Expert of each pair.
    pub(crate) experts: Vec<usize>,
    /// Weight of each pair; those of a token add up to one.
    pub(crate) weights: Vec<f32>,
}

impl Routes {
    /// Chooses the `top_k` best experts of each token from `logits` (one row of `experts` numbers a token).
    pub(crate) fn choose(logits: &[f32], experts: usize, top_k: usize, scoring: Scoring) -> Self {
        let mut routes = Self { starts: vec![0], ..Self::default() };
        for row in logits.chunks_exact(experts) {
            let scores = scores(row, scoring);
            let mut order: Vec<usize> = (0..experts).collect();
            order.sort_unstable_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
            routes.push(order[..top_k].iter().map(|expert| (*expert, scores[*expert])));
        }
        routes
    }

    /// Applies OEA: see the module's text.
    pub(crate) fn opportunistic(&self, k0: usize, experts: usize) -> Self {
        let mut read = vec![false; experts];
        for token in 0..self.tokens() {
            for pair in self.pairs(token).take(k0) {
                read[self.experts[pair]] = true;
            }
        }
        let mut routes = Self { starts: vec![0], ..Self::default() };
        for token in 0..self.tokens() {
            let kept: Vec<usize> = self.pairs(token).filter(|pair| read[self.experts[*pair]]).collect();
            let all = kept.len() == self.pairs(token).len();
            routes.push(kept.into_iter().map(|pair| (self.experts[pair], self.weights[pair])));
            if all {
                // Dividing once more would only add rounding: a token that loses nothing is left as it was.
                let pairs = routes.pairs(token);
                routes.weights[pairs].copy_from_slice(&self.weights[self.pairs(token)]);
            }
        }
        routes
    }

    /// Adds a token with its experts and scores, best first.
    fn push(&mut self, pairs: impl Iterator<Item = (usize, f32)>) {
        let start = self.experts.len();
        for (expert, score) in pairs {
            self.experts.push(expert);
            self.weights.push(score);
        }
        let sum: f32 = self.weights[start..].iter().sum();
        self.weights[start..].iter_mut().for_each(|weight| *weight /= sum);
        self.starts.push(self.experts.len());
    }

    pub(crate) fn tokens(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Indices of a token's pairs.
    pub(crate) fn pairs(&self, token: usize) -> std::ops::Range<usize> {
        self.starts[token]..self.starts[token + 1]
    }

    /// Number of different experts in the batch.
    pub(crate) fn distinct(&self, experts: usize) -> usize {
        let mut read = vec![false; experts];
        self.experts.iter().for_each(|expert| read[*expert] = true);
        read.iter().filter(|read| **read).count()
    }
}

fn scores(logits: &[f32], scoring: Scoring) -> Vec<f32> {
    match scoring {
        Scoring::Sigmoid => logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect(),
        Scoring::Softmax => {
            let mut scores = logits.to_vec();
            softmax(&mut scores);
            scores
        }
    }
}

/// Turns logits into probabilities in place; an empty slice stays empty.
pub(crate) fn softmax(values: &mut [f32]) {
    let largest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for value in values.iter_mut() {
        *value = (*value - largest).exp();
        sum += *value;
    }
    for value in values {
        *value /= sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;
    use std::collections::BTreeMap;

    fn logits(tokens: usize, experts: usize, seed: u32) -> Vec<f32> {
        let hash = |i: u32| (i.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 8) as f32 / 4e6;
        (0..(tokens * experts) as u32).map(hash).collect()
    }

    #[test]
    fn no_tokens_have_no_routes() {
        let routes = Routes::choose(&[], 8, 2, Scoring::Softmax);
        assert_eq!((routes.tokens(), routes.distinct(8)), (0, 0));
        assert_eq!(routes.opportunistic(1, 8), routes);
    }

    #[test]
    fn the_best_experts_are_chosen_in_order_and_their_weights_add_up_to_one() {
        for scoring in [Scoring::Softmax, Scoring::Sigmoid] {
            let routes = Routes::choose(&[0.0, 3.0, -1.0, 2.0, 3.0], 5, 3, scoring);
            assert_eq!(routes.experts, [1, 4, 3], "ties go to the lower number");
            assert!((routes.weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        }
        let routes = Routes::choose(&[0.0, 3.0, -1.0, 2.0, 3.0], 5, 3, Scoring::Softmax);
        let share = 1.0 / (2.0 + (-1.0f32).exp());
        assert!((routes.weights[0] - share).abs() < 1e-6);
    }

    #[test]
    fn opportunistic_activation_equals_its_definition() {
        for (tokens, k0, seed) in [(1, 1, 0), (1, 4, 1), (5, 2, 2), (16, 4, 3), (16, 8, 4), (40, 1, 5)] {
            let logits = logits(tokens, 64, seed);
            let got = Routes::choose(&logits, 64, 8, Scoring::Softmax).opportunistic(k0, 64);
            let rows: Vec<Vec<f64>> =
                logits.chunks(64).map(|row| row.iter().map(|logit| f64::from(*logit)).collect()).collect();
            let want = reference::weights(&rows, 8, Scoring::Softmax, Some(k0));
            assert_eq!(got.tokens(), tokens);
            for (token, want) in want.iter().enumerate() {
                let pairs: BTreeMap<usize, f32> =
                    got.pairs(token).map(|pair| (got.experts[pair], got.weights[pair])).collect();
                assert!(pairs.keys().eq(want.keys()), "token {token} of {tokens}, k0 {k0}");
                assert!(pairs.iter().all(|(e, w)| (f64::from(*w) - want[e]).abs() < 1e-5));
            }
        }
    }

    #[test]
    fn a_token_alone_keeps_k0_experts_and_top_k_changes_nothing() {
        let logits = logits(12, 64, 9);
        let all = Routes::choose(&logits, 64, 8, Scoring::Softmax);
        assert_eq!(Routes::choose(&logits[..64], 64, 8, Scoring::Softmax).opportunistic(3, 64).experts.len(), 3);
        assert_eq!(all.opportunistic(8, 64).experts, all.experts);
        assert!(all.opportunistic(2, 64).distinct(64) < all.distinct(64));
    }

    #[test]
    fn variables_are_off_valid_or_named() {
        assert_eq!(Oea::from_values(None, None, 8), Ok(None));
        assert_eq!(Oea::from_values(Some("4"), None, 8), Ok(Some(Oea { k0: 4, min_batch: 1 })));
        assert_eq!(Oea::from_values(Some("8"), Some("8"), 8), Ok(Some(Oea { k0: 8, min_batch: 8 })));
        assert_eq!(Oea::from_values(None, Some("8"), 8), Ok(None));
        for (k0, min_batch, named) in [
            (Some("0"), None, "SGLANG_OEA_K0"),
            (Some("9"), None, "SGLANG_OEA_K0"),
            (Some(""), None, "SGLANG_OEA_K0"),
            (Some("4"), Some("x"), "SGLANG_OEA_MIN_BATCH"),
            (None, Some("0"), "SGLANG_OEA_MIN_BATCH"),
        ] {
            let error = Oea::from_values(k0, min_batch, 8).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
