//! Dimensions and weights of the pocket model.
//!
//! Weights are random but fixed by the seed: tensor number `n` is a stream of its own, so equal seeds give equal weights
//! on every machine and with any number of threads. All numbers are 32-bit floats.

use crate::linear::LANES;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// Number of words of the vocabulary; see [`crate::vocabulary`].
pub const VOCABULARY: usize = 2003;

/// Shape of a model; all row lengths are multiples of sixteen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dimensions {
    /// Length of the residual stream.
    pub hidden: usize,
    /// Attention heads; `hidden / heads` is the length of one.
    pub heads: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Experts in a layer.
    pub experts: usize,
    /// Experts that a token is routed to.
    pub top_k: usize,
    /// Inner length of an expert.
    pub expert_width: usize,
}

impl Dimensions {
    /// Names accepted as `--model-path`.
    pub const PRESETS: [&str; 2] = ["pocket-moe", "pocket-moe-tiny"];

    /// The shape called `name`: `pocket-moe` (361 MB, about 50 MB read for a token) or `pocket-moe-tiny` (for tests).
    pub fn preset(name: &str) -> Option<Self> {
        match name {
            "pocket-moe" => Some(Self { hidden: 256, heads: 4, layers: 4, experts: 64, top_k: 8, expert_width: 448 }),
            "pocket-moe-tiny" => {
                Some(Self { hidden: 32, heads: 2, layers: 2, experts: 16, top_k: 4, expert_width: 32 })
            }
            _ => None,
        }
    }

    /// Length of one attention head.
    pub fn head(&self) -> usize {
        self.hidden / self.heads
    }

    /// Weights of one expert: gate and up (`expert_width` rows each), then down (`hidden` rows).
    pub(crate) fn expert(&self) -> usize {
        3 * self.hidden * self.expert_width
    }

    /// Bytes of weights that one token reads when it is alone in the batch.
    pub fn weight_bytes_per_token(&self) -> usize {
        let layer = 4 * self.hidden * self.hidden + (self.experts + 2) * self.hidden + self.top_k * self.expert();
        (self.layers * layer + (VOCABULARY + 2) * self.hidden) * size_of::<f32>()
    }

    /// Bytes of all weights.
    pub fn weight_bytes(&self) -> usize {
        let layer = 4 * self.hidden * self.hidden + (self.experts + 2) * self.hidden + self.experts * self.expert();
        (self.layers * layer + (2 * VOCABULARY + 1) * self.hidden) * size_of::<f32>()
    }
}

/// Weights of one decoder layer, row-major.
pub(crate) struct Layer {
    /// Scale before attention, `hidden`.
    pub(crate) attention_norm: Vec<f32>,
    /// Query, key and value, `3 · hidden` rows of `hidden`.
    pub(crate) qkv: Vec<f32>,
    /// Output of attention, `hidden` rows of `hidden`.
    pub(crate) output: Vec<f32>,
    /// Scale before the experts, `hidden`.
    pub(crate) expert_norm: Vec<f32>,
    /// Router, `experts` rows of `hidden`.
    pub(crate) router: Vec<f32>,
    /// All experts one after another, each as [`Dimensions::expert`] says.
    pub(crate) experts: Vec<f32>,
}

/// A model with its weights in memory.
pub(crate) struct Model {
    pub(crate) dimensions: Dimensions,
    /// `VOCABULARY` rows of `hidden`.
    pub(crate) embedding: Vec<f32>,
    pub(crate) layers: Vec<Layer>,
    /// Scale before the head, `hidden`.
    pub(crate) head_norm: Vec<f32>,
    /// `VOCABULARY` rows of `hidden`.
    pub(crate) head: Vec<f32>,
}

impl Model {
    /// Fills all weights from `seed`, with as many threads as the machine has.
    ///
    /// # Panics
    ///
    /// When a row length is not a multiple of sixteen.
    pub(crate) fn new(dimensions: Dimensions, seed: u64) -> Self {
        let Dimensions { hidden, experts, expert_width, .. } = dimensions;
        let lengths = [hidden, dimensions.head(), expert_width];
        assert!(lengths.iter().all(|length| length.is_multiple_of(LANES)), "row lengths are multiples of sixteen");
        let mut tensor = Tensors { seed, next: 0 };
        // Variance 1/n keeps the residual stream near unit scale; the router is sharper so that scores differ.
        let unit = (3.0 / hidden as f32).sqrt();
        let embedding = tensor.filled(VOCABULARY * hidden, 3.0f32.sqrt(), 0.0);
        let layers = (0..dimensions.layers)
            .map(|_| Layer {
                attention_norm: tensor.filled(hidden, 0.1, 1.0),
                qkv: tensor.filled(3 * hidden * hidden, unit, 0.0),
                output: tensor.filled(hidden * hidden, unit, 0.0),
                expert_norm: tensor.filled(hidden, 0.1, 1.0),
                router: tensor.filled(experts * hidden, 2.0 * unit, 0.0),
                experts: tensor.filled(experts * dimensions.expert(), 1.5 * unit, 0.0),
            })
            .collect();
        let head_norm = tensor.filled(hidden, 0.1, 1.0);
        let head = tensor.filled(VOCABULARY * hidden, unit, 0.0);
        Self { dimensions, embedding, layers, head_norm, head }
    }

    /// Shape of the model.
    pub(crate) fn dimensions(&self) -> Dimensions {
        self.dimensions
    }
}

/// Deals out tensors, each from its own stream of one seed.
struct Tensors {
    seed: u64,
    next: u64,
}

impl Tensors {
    /// `length` numbers uniform in `centre ± spread`.
    fn filled(&mut self, length: usize, spread: f32, centre: f32) -> Vec<f32> {
        let mut keys = ChaCha8Rng::seed_from_u64(self.seed);
        keys.set_stream(self.next);
        self.next += 1;
        let keys = [keys.next_u32(), keys.next_u32()];
        let mut values = vec![0.0; length];
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let part = length.div_ceil(threads).max(1 << 16);
        std::thread::scope(|scope| {
            for (i, values) in values.chunks_mut(part).enumerate() {
                let start = (i * part) as u32;
                scope.spawn(move || fill(values, start, keys, spread, centre));
            }
        });
        values
    }
}

/// Number `i` of a tensor is a hash of the keys and `i`: 90 million numbers take a fraction of a second, in any order.
fn fill(values: &mut [f32], start: u32, keys: [u32; 2], spread: f32, centre: f32) {
    for (i, value) in (0u32..).zip(values) {
        let mut bits = (start.wrapping_add(i) ^ keys[0]).wrapping_mul(0x9e37_79b9).wrapping_add(keys[1]);
        bits = (bits ^ (bits >> 16)).wrapping_mul(0x85eb_ca6b);
        bits = (bits ^ (bits >> 13)).wrapping_mul(0xc2b2_ae35);
        bits ^= bits >> 16;
        let unit = (bits.cast_signed() >> 8) as f32 / (1 << 23) as f32;
        *value = centre + spread * unit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_weights_and_others_do_not() {
        let tiny = Dimensions::preset("pocket-moe-tiny").unwrap();
        let (a, b, c) = (Model::new(tiny, 1), Model::new(tiny, 1), Model::new(tiny, 2));
        assert_eq!(a.layers[1].experts, b.layers[1].experts);
        assert_eq!(a.head, b.head);
        assert_ne!(a.head, c.head);
        assert_ne!(a.layers[0].router, a.layers[1].router);
    }

    #[test]
    fn weights_are_spread_evenly_around_their_centre() {
        let values = Tensors { seed: 3, next: 0 }.filled(100_000, 2.0, 1.0);
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / 1e5;
        let variance = values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / 1e5;
        assert!((mean - 1.0).abs() < 0.02 && (variance - 4.0 / 3.0).abs() < 0.02, "{mean} {variance}");
    }

    #[test]
    fn the_default_model_reads_about_fifty_megabytes_for_a_token() {
        let pocket = Dimensions::preset("pocket-moe").unwrap();
        assert!(
            (48_000_000..53_000_000).contains(&pocket.weight_bytes_per_token()),
            "{}",
            pocket.weight_bytes_per_token()
        );
        assert!((320_000_000..400_000_000).contains(&pocket.weight_bytes()), "{}", pocket.weight_bytes());
        assert!(Dimensions::preset("").is_none());
    }
}
