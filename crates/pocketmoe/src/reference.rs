//! The model a second time, for tests: 64-bit floats, no cache, no chunks, no kernels, straight from the definitions.

use crate::model::{Dimensions, Layer, Model};
use crate::router::Scoring;
use std::collections::{BTreeMap, BTreeSet};

type Vector = Vec<f64>;

/// Logits of the last token of each sequence; with `k0`, all tokens are one batch of opportunistic expert activation.
pub(crate) fn logits(model: &Model, sequences: &[&[u32]], scoring: Scoring, k0: Option<usize>) -> Vec<Vector> {
    let hidden = model.dimensions.hidden;
    let embedded = |id: &u32| widened(&model.embedding[*id as usize * hidden..][..hidden]);
    let mut batch: Vec<Vec<Vector>> = sequences.iter().map(|ids| ids.iter().map(embedded).collect()).collect();
    for layer in &model.layers {
        for sequence in &mut batch {
            attend(model.dimensions, layer, sequence);
        }
        let tokens: Vec<&mut Vector> = batch.iter_mut().flatten().collect();
        mix(model.dimensions, layer, tokens, scoring, k0);
    }
    batch.iter().map(|sequence| times(&model.head, &normed(&sequence[sequence.len() - 1], &model.head_norm))).collect()
}

fn widened(row: &[f32]) -> Vector {
    row.iter().map(|x| f64::from(*x)).collect()
}

fn times(weights: &[f32], x: &[f64]) -> Vector {
    weights.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
}

fn normed(x: &[f64], scale: &[f32]) -> Vector {
    let rms = (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + 1e-6).sqrt();
    x.iter().zip(scale).map(|(x, scale)| x / rms * f64::from(*scale)).collect()
}

fn rotated(x: &[f64], head: usize, position: usize) -> Vector {
    let half = head / 2;
    let mut y = x.to_vec();
    for start in (0..x.len()).step_by(head) {
        for i in 0..half {
            let angle = position as f64 / 10_000f64.powf(i as f64 / half as f64);
            let (a, b) = (x[start + i], x[start + i + half]);
            y[start + i] = a * angle.cos() - b * angle.sin();
            y[start + i + half] = a * angle.sin() + b * angle.cos();
        }
    }
    y
}

fn attend(d: Dimensions, layer: &Layer, sequence: &mut [Vector]) {
    let qkv: Vec<Vector> = sequence.iter().map(|x| times(&layer.qkv, &normed(x, &layer.attention_norm))).collect();
    let turned = |from: usize| -> Vec<Vector> {
        qkv.iter().enumerate().map(|(place, row)| rotated(&row[from..from + d.hidden], d.head(), place)).collect()
    };
    let (queries, keys) = (turned(0), turned(d.hidden));
    for (place, x) in sequence.iter_mut().enumerate() {
        let mut mixed = vec![0.0; d.hidden];
        for start in (0..d.hidden).step_by(d.head()) {
            let part = start..start + d.head();
            let scores: Vector = keys[..=place]
                .iter()
                .map(|key| {
                    let dot: f64 = part.clone().map(|i| queries[place][i] * key[i]).sum();
                    (dot / (d.head() as f64).sqrt()).exp()
                })
                .collect();
            let total: f64 = scores.iter().sum();
            for (score, row) in scores.iter().zip(&qkv) {
                for i in part.clone() {
                    mixed[i] += score / total * row[2 * d.hidden + i];
                }
            }
        }
        for (x, y) in x.iter_mut().zip(times(&layer.output, &mixed)) {
            *x += y;
        }
    }
}

fn mix(d: Dimensions, layer: &Layer, tokens: Vec<&mut Vector>, scoring: Scoring, k0: Option<usize>) {
    let inputs: Vec<Vector> = tokens.iter().map(|x| normed(x, &layer.expert_norm)).collect();
    let logits: Vec<Vector> = inputs.iter().map(|x| times(&layer.router, x)).collect();
    let weights = weights(&logits, d.top_k, scoring, k0);
    for ((x, input), weights) in tokens.into_iter().zip(&inputs).zip(weights) {
        for (expert, weight) in weights {
            let (gate_up, down) =
                layer.experts[expert * d.expert()..][..d.expert()].split_at(2 * d.expert_width * d.hidden);
            let inner = times(gate_up, input);
            let active: Vector =
                (0..d.expert_width).map(|i| inner[i] / (1.0 + (-inner[i]).exp()) * inner[d.expert_width + i]).collect();
            for (x, y) in x.iter_mut().zip(times(down, &active)) {
                *x += weight * y;
            }
        }
    }
}

/// Experts and weights of each token of a batch: the definition of routing and of opportunistic expert activation.
pub(crate) fn weights(
    logits: &[Vector],
    top_k: usize,
    scoring: Scoring,
    k0: Option<usize>,
) -> Vec<BTreeMap<usize, f64>> {
    let ranked: Vec<Vec<(usize, f64)>> = logits
        .iter()
        .map(|row| {
            let total: f64 = row.iter().map(|logit| logit.exp()).sum();
            let score = |logit: &f64| match scoring {
                Scoring::Softmax => logit.exp() / total,
                Scoring::Sigmoid => 1.0 / (1.0 + (-logit).exp()),
            };
            let mut pairs: Vec<(usize, f64)> = row.iter().map(score).enumerate().collect();
            pairs.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            pairs.truncate(top_k);
            pairs
        })
        .collect();
    let first = k0.unwrap_or(top_k);
    let union: BTreeSet<usize> = ranked.iter().flat_map(|pairs| pairs[..first].iter().map(|pair| pair.0)).collect();
    ranked
        .into_iter()
        .map(|pairs| {
            let kept: Vec<_> = pairs.into_iter().filter(|(expert, _)| union.contains(expert)).collect();
            let sum: f64 = kept.iter().map(|pair| pair.1).sum();
            kept.into_iter().map(|(expert, score)| (expert, score / sum)).collect()
        })
        .collect()
}
