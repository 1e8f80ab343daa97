//! The two kernels that apply the routed experts to a batch.
//!
//! `loop` goes token by token: each token streams the weights of its own experts. `grouped` goes expert by expert: an
//! expert's weights are read once for all its tokens. The arithmetic for one token and one expert is the same code, and
//! a token's experts are added in its own ranking, so the results are the same bits.

use crate::linear::linear;
use crate::model::Dimensions;
use crate::router::Routes;
use std::ops::Range;

/// A mixture kernel, as `/server_info` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// Token by token.
    Loop,
    /// Expert by expert.
    Grouped,
}

impl Backend {
    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Loop => "loop",
            Self::Grouped => "grouped",
        }
    }

    /// The other kernel.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Loop => Self::Grouped,
            Self::Grouped => Self::Loop,
        }
    }
}

/// One pass over one expert's weights, for the pairs at these places of the order of work.
struct Pass {
    expert: usize,
    places: Range<usize>,
}

/// Adds to `residual` the weighted outputs of the experts of `routes` for the inputs `xs` (a row of `hidden` a token).
pub(crate) fn apply(
    backend: Backend,
    threads: usize,
    dimensions: Dimensions,
    weights: &[f32],
    routes: &Routes,
    xs: &[f32],
    residual: &mut [f32],
) {
    let hidden = dimensions.hidden;
    let (order, passes) = plan(backend, routes);
    let mut token_of = vec![0; order.len()];
    for token in 0..routes.tokens() {
        token_of[routes.pairs(token)].fill(token);
    }
    let mut outputs = vec![0.0; order.len() * hidden];
    let work = Work { dimensions, weights, order: &order, token_of: &token_of, xs };
    let share = passes.len().div_ceil(threads.max(1)).max(1);
    if passes.len() <= share {
        work.run(&passes, &mut outputs);
    } else {
        std::thread::scope(|scope| {
            let mut rest = outputs.as_mut_slice();
            for passes in passes.chunks(share) {
                let pairs: usize = passes.iter().map(|pass| pass.places.len()).sum();
                let (mine, others) = rest.split_at_mut(pairs * hidden);
                rest = others;
                let work = &work;
                scope.spawn(move || work.run(passes, mine));
            }
        });
    }
    let mut place_of = vec![0; order.len()];
    order.iter().enumerate().for_each(|(place, pair)| place_of[*pair] = place);
    let mut sum = vec![0.0; hidden];
    for (token, residual) in residual.chunks_exact_mut(hidden).enumerate() {
        sum.fill(0.0);
        for pair in routes.pairs(token) {
            let output = &outputs[place_of[pair] * hidden..(place_of[pair] + 1) * hidden];
            sum.iter_mut().zip(output).for_each(|(sum, value)| *sum += routes.weights[pair] * value);
        }
        residual.iter_mut().zip(&sum).for_each(|(residual, sum)| *residual += sum);
    }
}

/// The order in which pairs are worked on (places → pairs) and the passes over weights, which cover it from the left.
fn plan(backend: Backend, routes: &Routes) -> (Vec<usize>, Vec<Pass>) {
    let mut order: Vec<usize> = (0..routes.experts.len()).collect();
    match backend {
        Backend::Loop => {
            let passes = order.iter().map(|pair| Pass { expert: routes.experts[*pair], places: *pair..pair + 1 });
            let passes = passes.collect();
            (order, passes)
        }
        Backend::Grouped => {
            order.sort_by_key(|pair| routes.experts[*pair]);
            let mut start = 0;
            let passes = order.chunk_by(|a, b| routes.experts[*a] == routes.experts[*b]).map(|group| {
                let places = start..start + group.len();
                start = places.end;
                Pass { expert: routes.experts[group[0]], places }
            });
            let passes = passes.collect();
            (order, passes)
        }
    }
}

/// What every pass reads.
struct Work<'a> {
    dimensions: Dimensions,
    weights: &'a [f32],
    order: &'a [usize],
    token_of: &'a [usize],
    xs: &'a [f32],
}

impl Work<'_> {
    /// Runs passes whose outputs are one contiguous slice.
    fn run(&self, passes: &[Pass], outputs: &mut [f32]) {
        let Dimensions { hidden, expert_width, .. } = self.dimensions;
        let (mut inputs, mut inner, mut active) = (Vec::new(), Vec::new(), Vec::new());
        let mut rest = outputs;
        for pass in passes {
            let tokens = pass.places.len();
            let (out, others) = rest.split_at_mut(tokens * hidden);
            rest = others;
            inputs.clear();
            for place in pass.places.clone() {
                let token = self.token_of[self.order[place]];
                inputs.extend_from_slice(&self.xs[token * hidden..(token + 1) * hidden]);
            }
            let size = self.dimensions.expert();
            let weights = &self.weights[pass.expert * size..(pass.expert + 1) * size];
            let (gate_up, down) = weights.split_at(2 * expert_width * hidden);
            inner.resize(tokens * 2 * expert_width, 0.0);
            linear(gate_up, hidden, &inputs, &mut inner);
            active.clear();
            for row in inner.chunks_exact(2 * expert_width) {
                let (gate, up) = row.split_at(expert_width);
                active.extend(gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up));
            }
            linear(down, expert_width, &active, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::router::Scoring;

    const TINY: Dimensions = Dimensions { hidden: 32, heads: 2, layers: 1, experts: 8, top_k: 3, expert_width: 48 };

    fn inputs(tokens: usize) -> Vec<f32> {
        (0..(tokens * TINY.hidden) as u32).map(|i| ((i.wrapping_mul(747_796_405) >> 9) as f32 / 4e6) - 1.0).collect()
    }

    fn run(backend: Backend, threads: usize, tokens: usize) -> Vec<f32> {
        let model = Model::new(TINY, 5);
        let xs = inputs(tokens);
        let mut logits = vec![0.0; tokens * TINY.experts];
        linear(&model.layers[0].router, TINY.hidden, &xs, &mut logits);
        let routes = Routes::choose(&logits, TINY.experts, TINY.top_k, Scoring::Softmax);
        let mut residual = vec![0.0; tokens * TINY.hidden];
        apply(backend, threads, TINY, &model.layers[0].experts, &routes, &xs, &mut residual);
        residual
    }

    #[test]
    fn no_tokens_change_nothing() {
        assert!(run(Backend::Grouped, 1, 0).is_empty());
        assert!(run(Backend::Loop, 2, 0).is_empty());
    }

    #[test]
    fn both_kernels_and_any_number_of_threads_give_the_same_bits() {
        let want = run(Backend::Loop, 1, 21);
        assert!(want.iter().any(|value| value.abs() > 0.1));
        for backend in [Backend::Loop, Backend::Grouped] {
            for threads in [1, 2, 3, 64] {
                assert_eq!(run(backend, threads, 21), want, "{backend:?} {threads}");
            }
        }
    }

    #[test]
    fn grouped_passes_over_each_expert_once() {
        let routes = Routes { starts: vec![0, 2, 4], experts: vec![3, 1, 1, 0], weights: vec![0.5; 4] };
        let (order, passes) = plan(Backend::Grouped, &routes);
        assert_eq!(order, [3, 1, 2, 0]);
        let seen: Vec<_> = passes.iter().map(|pass| (pass.expert, pass.places.clone())).collect();
        assert_eq!(seen, [(0, 0..1), (1, 1..3), (3, 3..4)]);
        assert_eq!(plan(Backend::Loop, &routes).1.len(), 4);
    }
}
