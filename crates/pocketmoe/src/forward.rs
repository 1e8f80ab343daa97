//! One pass of the model over a batch of tokens, with the keys and values of earlier tokens in a cache.
//!
//! Each token is computed on its own from its own sequence's slots, in a fixed order, so that neither the batch nor the
//! way a prompt is cut into chunks changes a bit of the result.

use crate::experts::{self, Backend};
use crate::linear::{dot, linear};
use crate::model::{Dimensions, Layer, Model, VOCABULARY};
use crate::router::{Routes, Scoring, softmax};

/// Keys and values of every slot: one slot holds one token of one sequence, in all layers.
pub(crate) struct Cache {
    hidden: usize,
    /// For each layer, `slots` rows of `hidden`.
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

impl Cache {
    /// Room for `slots` tokens; the memory is only touched as slots are used.
    pub(crate) fn new(dimensions: Dimensions, slots: usize) -> Self {
        let layer = || vec![0.0; slots * dimensions.hidden];
        let layers = || (0..dimensions.layers).map(|_| layer()).collect();
        Self { hidden: dimensions.hidden, keys: layers(), values: layers() }
    }

    fn row(&self, slot: u32) -> std::ops::Range<usize> {
        let slot = slot as usize;
        slot * self.hidden..(slot + 1) * self.hidden
    }
}

/// One token to compute.
pub(crate) struct Row<'a> {
    /// Its id.
    pub(crate) token: u32,
    /// The slots of its sequence from the first token to this one; its position is their number less one.
    pub(crate) slots: &'a [u32],
}

/// How the experts are chosen and computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mixture {
    /// The kernel.
    pub(crate) backend: Backend,
    /// Threads of the kernel.
    pub(crate) threads: usize,
    /// How router outputs become scores.
    pub(crate) scoring: Scoring,
    /// Opportunistic expert activation with this `k0`, for this batch.
    pub k0: Option<usize>,
}

/// What one pass produced.
pub(crate) struct Output {
    /// `VOCABULARY` numbers for each wanted row, in the order asked for.
    pub(crate) logits: Vec<f32>,
    /// Distinct experts read, added up over the layers.
    pub(crate) experts_read: usize,
}

impl Model {
    /// Computes `rows`, writing their keys and values into their own slots, and the logits of the rows `wanted`.
    ///
    /// Rows of one sequence must come in the order of their positions.
    pub(crate) fn forward(&self, cache: &mut Cache, rows: &[Row<'_>], wanted: &[usize], mixture: Mixture) -> Output {
        let Dimensions { hidden, experts, top_k, .. } = self.dimensions;
        let mut residual = Vec::with_capacity(rows.len() * hidden);
        for row in rows {
            let start = row.token as usize * hidden;
            residual.extend_from_slice(&self.embedding[start..start + hidden]);
        }
        let mut experts_read = 0;
        for (number, layer) in self.layers.iter().enumerate() {
            self.attend(layer, number, cache, rows, &mut residual);
            let xs = normed(&residual, &layer.expert_norm);
            let mut logits = vec![0.0; rows.len() * experts];
            linear(&layer.router, hidden, &xs, &mut logits);
            let mut routes = Routes::choose(&logits, experts, top_k, mixture.scoring);
            if let Some(k0) = mixture.k0 {
                routes = routes.opportunistic(k0, experts);
            }
            experts_read += routes.distinct(experts);
            experts::apply(
                mixture.backend,
                mixture.threads,
                self.dimensions,
                &layer.experts,
                &routes,
                &xs,
                &mut residual,
            );
        }
        let last: Vec<f32> =
            wanted.iter().flat_map(|row| &residual[row * hidden..(row + 1) * hidden]).copied().collect();
        let mut logits = vec![0.0; wanted.len() * VOCABULARY];
        linear(&self.head, hidden, &normed(&last, &self.head_norm), &mut logits);
        Output { logits, experts_read }
    }

    /// The attention half of a layer, added to `residual`.
    fn attend(&self, layer: &Layer, number: usize, cache: &mut Cache, rows: &[Row<'_>], residual: &mut [f32]) {
        let (hidden, head) = (self.dimensions.hidden, self.dimensions.head());
        let mut qkv = vec![0.0; rows.len() * 3 * hidden];
        linear(&layer.qkv, hidden, &normed(residual, &layer.attention_norm), &mut qkv);
        for (row, qkv) in rows.iter().zip(qkv.chunks_exact_mut(3 * hidden)) {
            let (position, slot) = (row.slots.len() - 1, row.slots[row.slots.len() - 1]);
            rotate(&mut qkv[..2 * hidden], head, position);
            let place = cache.row(slot);
            cache.keys[number][place.clone()].copy_from_slice(&qkv[hidden..2 * hidden]);
            cache.values[number][place].copy_from_slice(&qkv[2 * hidden..]);
        }
        let (keys, values) = (&cache.keys[number], &cache.values[number]);
        let mut mixed = vec![0.0; rows.len() * hidden];
        let mut scores = Vec::new();
        for ((row, qkv), mixed) in rows.iter().zip(qkv.chunks_exact(3 * hidden)).zip(mixed.chunks_exact_mut(hidden)) {
            for (h, mixed) in mixed.chunks_exact_mut(head).enumerate() {
                let part = h * head..(h + 1) * head;
                let query = &qkv[part.clone()];
                let scale = 1.0 / (head as f32).sqrt();
                scores.clear();
                scores.extend(row.slots.iter().map(|slot| dot(query, &keys[cache.row(*slot)][part.clone()]) * scale));
                softmax(&mut scores);
                for (score, slot) in scores.iter().zip(row.slots) {
                    let value = &values[cache.row(*slot)][part.clone()];
                    mixed.iter_mut().zip(value).for_each(|(mixed, value)| *mixed += score * value);
                }
            }
        }
        let mut out = vec![0.0; rows.len() * hidden];
        linear(&layer.output, hidden, &mixed, &mut out);
        residual.iter_mut().zip(&out).for_each(|(residual, out)| *residual += out);
    }
}

/// Rows of `xs` scaled to unit root mean square, then by `scale`.
fn normed(xs: &[f32], scale: &[f32]) -> Vec<f32> {
    let mut out = Vec::with_capacity(xs.len());
    for x in xs.chunks_exact(scale.len()) {
        let inverse = 1.0 / (dot(x, x) / x.len() as f32 + 1e-6).sqrt();
        out.extend(x.iter().zip(scale).map(|(x, scale)| x * inverse * scale));
    }
    out
}

/// Rotary positions, halves of a head paired, base 10 000.
fn rotate(heads: &mut [f32], head: usize, position: usize) {
    let half = head / 2;
    for pair in 0..half {
        let angle = position as f64 * 10_000f64.powf(-(pair as f64) / half as f64);
        let (sine, cosine) = (angle.sin() as f32, angle.cos() as f32);
        for vector in heads.chunks_exact_mut(head) {
            let (a, b) = (vector[pair], vector[pair + half]);
            vector[pair] = a * cosine - b * sine;
            vector[pair + half] = a * sine + b * cosine;
        }
    }
}

/// The token with the largest logit; the lower id among equals.
pub(crate) fn greedy(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;

    const TINY: Dimensions = Dimensions { hidden: 32, heads: 2, layers: 2, experts: 16, top_k: 4, expert_width: 32 };

    fn mixture(backend: Backend) -> Mixture {
        Mixture { backend, threads: 1, scoring: Scoring::Softmax, k0: None }
    }

    fn whole(model: &Model, tokens: &[u32], mixture: Mixture) -> Vec<f32> {
        let mut cache = Cache::new(TINY, tokens.len());
        let slots: Vec<u32> = (0..tokens.len() as u32).rev().collect();
        let rows: Vec<Row<'_>> =
            tokens.iter().enumerate().map(|(i, token)| Row { token: *token, slots: &slots[..=i] }).collect();
        model.forward(&mut cache, &rows, &[tokens.len() - 1], mixture).logits
    }

    #[test]
    fn an_empty_batch_gives_nothing() {
        let model = Model::new(TINY, 1);
        let output = model.forward(&mut Cache::new(TINY, 1), &[], &[], mixture(Backend::Grouped));
        assert!(output.logits.is_empty() && output.experts_read == 0);
    }

    fn worst(got: &[f32], want: &[f64]) -> f64 {
        got.iter().zip(want).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max)
    }

    #[test]
    fn logits_of_both_kernels_agree_with_a_naive_reference_in_double_precision() {
        let model = Model::new(TINY, 42);
        let tokens = [5, 700, 2002, 1, 33, 33, 900, 12];
        for scoring in [Scoring::Softmax, Scoring::Sigmoid] {
            for length in [1, 2, tokens.len()] {
                let want = &reference::logits(&model, &[&tokens[..length]], scoring, None)[0];
                assert!(want.iter().fold(0.0f64, |a, b| a.max(b.abs())) > 0.5, "the logits are not trivial");
                for backend in [Backend::Loop, Backend::Grouped] {
                    let got = whole(&model, &tokens[..length], Mixture { scoring, ..mixture(backend) });
                    let worst = worst(&got, want);
                    assert!(worst < 2e-4, "{backend:?} {scoring:?} length {length}: off by {worst}");
                }
            }
        }
    }

    #[test]
    fn opportunistic_activation_of_a_batch_agrees_with_the_reference() {
        let model = Model::new(TINY, 11);
        let sequences: [&[u32]; 4] = [&[3, 4, 5], &[900], &[77, 78], &[1200]];
        let slots: Vec<u32> = (0..7).collect();
        let (mut rows, mut wanted, mut start) = (Vec::new(), Vec::new(), 0);
        for tokens in sequences {
            let own = &slots[start..start + tokens.len()];
            rows.extend(tokens.iter().enumerate().map(|(i, token)| Row { token: *token, slots: &own[..=i] }));
            wanted.push(rows.len() - 1);
            start += tokens.len();
        }
        let run = |k0, backend| {
            let mixture = Mixture { k0, ..mixture(backend) };
            model.forward(&mut Cache::new(TINY, 7), &rows, &wanted, mixture)
        };
        let plain = run(None, Backend::Grouped);
        for k0 in 1..=TINY.top_k {
            let want = reference::logits(&model, &sequences, Scoring::Softmax, Some(k0)).concat();
            let got = run(Some(k0), Backend::Grouped);
            assert!(worst(&got.logits, &want) < 2e-4, "k0 {k0}: off by {}", worst(&got.logits, &want));
            assert_eq!(got.logits, run(Some(k0), Backend::Loop).logits);
            assert_eq!(got.logits == plain.logits, k0 == TINY.top_k, "k0 {k0}");
            assert!(got.experts_read <= plain.experts_read);
        }
    }

    #[test]
    fn chunks_batches_and_the_order_of_slots_do_not_change_a_bit() {
        let model = Model::new(TINY, 7);
        let (a, b) = ([9u32, 8, 7, 6, 5, 4], [100u32, 200, 300, 400]);
        let want_a = whole(&model, &a, mixture(Backend::Loop));
        let want_b = whole(&model, &b, mixture(Backend::Grouped));
        let mut cache = Cache::new(TINY, 10);
        let (slots_a, slots_b) = ([3u32, 1, 9, 0, 5, 2], [4u32, 8, 7, 6]);
        let row_a = |i: usize| Row { token: a[i], slots: &slots_a[..=i] };
        let row_b = |i: usize| Row { token: b[i], slots: &slots_b[..=i] };
        let grouped = mixture(Backend::Grouped);
        model.forward(&mut cache, &[row_a(0), row_a(1), row_a(2)], &[], grouped);
        model.forward(&mut cache, &[row_b(0), row_a(3), row_b(1), row_a(4), row_b(2)], &[], grouped);
        let output = model.forward(&mut cache, &[row_a(5), row_b(3)], &[1, 0], grouped);
        assert_eq!(output.logits[..VOCABULARY], want_b);
        assert_eq!(output.logits[VOCABULARY..], want_a);
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals() {
        assert_eq!(greedy(&[0.0, 2.0, 2.0, 1.0]), 1);
    }
}
