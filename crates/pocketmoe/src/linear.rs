//! Matrix times vectors, the one arithmetic routine of the engine.
//!
//! Invariant: the sum for one token and one weight row is taken in one fixed order (sixteen interleaved partial sums,
//! then a tree), whatever the number of tokens beside it and whatever instructions the machine offers. That is why a
//! sequence in a batch gives exactly the tokens it gives alone, and why both mixture kernels agree bit for bit.

/// Number of interleaved partial sums; every row length is a multiple of it.
pub(crate) const LANES: usize = 16;

/// Tokens that share one pass over the weights: their inputs (16 kB at hidden size 256) stay in the first-level cache.
const TILE: usize = 16;

/// `out[t][r] = w[r] · xs[t]` for all rows `r` of `w` and all tokens `t`, each row and token `columns` long.
///
/// A weight row is read from memory once for each tile of sixteen tokens.
///
/// # Panics
///
/// When the lengths do not fit together or `columns` is not a multiple of sixteen.
pub(crate) fn linear(weights: &[f32], columns: usize, xs: &[f32], out: &mut [f32]) {
    assert!(columns.is_multiple_of(LANES) && weights.len().is_multiple_of(columns), "a row is a multiple of 16 long");
    assert!(xs.len() / columns * (weights.len() / columns) == out.len(), "one output for each token and row");
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        #[expect(unsafe_code, reason = "the processor was just seen to have AVX2; the body is the same safe code")]
        // SAFETY: the only requirement of `linear_avx2` is that the processor has AVX2.
        unsafe {
            linear_avx2(weights, columns, xs, out);
        }
        return;
    }
    linear_any(weights, columns, xs, out);
}

/// The same code compiled for 256-bit registers. No fused multiply-add: it would round differently from other machines.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn linear_avx2(weights: &[f32], columns: usize, xs: &[f32], out: &mut [f32]) {
    linear_any(weights, columns, xs, out);
}

#[expect(clippy::inline_always, reason = "must be compiled with the features of its caller")]
#[inline(always)]
fn linear_any(weights: &[f32], columns: usize, xs: &[f32], out: &mut [f32]) {
    let rows = weights.len() / columns;
    for (tile, out) in xs.chunks(TILE * columns).zip(out.chunks_mut(TILE * rows)) {
        for (row, weights) in weights.chunks_exact(columns).enumerate() {
            let mut quads = tile.chunks_exact(4 * columns);
            let mut token = 0;
            for quad in &mut quads {
                let four = std::array::from_fn(|i| &quad[i * columns..(i + 1) * columns]);
                for (i, sum) in dot_four(weights, four).into_iter().enumerate() {
                    out[(token + i) * rows + row] = sum;
                }
                token += 4;
            }
            // Alone, a token is bound by memory already; four rows at once for it were measured at half the speed.
            for x in quads.remainder().chunks_exact(columns) {
                out[token * rows + row] = dot_one(weights, x);
                token += 1;
            }
        }
    }
}

/// Sixteen interleaved partial sums.
type Sums = [f32; LANES];

/// `sums + w · x`, lane by lane.
#[expect(clippy::inline_always, reason = "must be compiled with the features of its caller")]
#[inline(always)]
fn add(mut sums: Sums, w: &Sums, x: &Sums) -> Sums {
    for lane in 0..LANES {
        sums[lane] += w[lane] * x[lane];
    }
    sums
}

#[expect(clippy::inline_always, reason = "must be compiled with the features of its caller")]
#[inline(always)]
fn dot_one(weights: &[f32], x: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    for (w, x) in weights.as_chunks().0.iter().zip(x.as_chunks().0) {
        sums = add(sums, w, x);
    }
    tree(sums)
}

/// Four dot products for one load of the weights; each is summed as [`dot_one`] does.
#[expect(clippy::inline_always, reason = "must be compiled with the features of its caller")]
#[inline(always)]
fn dot_four(weights: &[f32], [a, b, c, d]: [&[f32]; 4]) -> [f32; 4] {
    let mut sums = [[0.0; LANES]; 4];
    let (ab, cd) = (a.as_chunks().0.iter().zip(b.as_chunks().0), c.as_chunks().0.iter().zip(d.as_chunks().0));
    for (w, ((a, b), (c, d))) in weights.as_chunks().0.iter().zip(ab.zip(cd)) {
        sums = [add(sums[0], w, a), add(sums[1], w, b), add(sums[2], w, c), add(sums[3], w, d)];
    }
    // Without this barrier the compiler mixes the four trees into the loop and shuffles instead of adding (measured: half
    // the speed). It changes no value.
    std::hint::black_box(sums).map(tree)
}

#[expect(clippy::inline_always, reason = "must be compiled with the features of its caller")]
#[inline(always)]
fn tree(mut sums: Sums) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    sums[0]
}

/// Dot product of two vectors of equal length (a multiple of sixteen), in the order of [`linear`].
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    dot_one(a, b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32)
            .map(|i| f32::from((i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 20) as i16) / 999.0)
            .collect()
    }

    #[test]
    fn no_tokens_give_no_output() {
        linear(&numbers(32, 1), 16, &[], &mut []);
    }

    #[test]
    fn a_token_has_the_same_bits_alone_and_in_any_batch() {
        let (columns, rows) = (64, 10);
        let weights = numbers(columns * rows, 7);
        let xs = numbers(columns * 37, 3);
        let mut together = vec![0.0; 37 * rows];
        linear(&weights, columns, &xs, &mut together);
        for (token, x) in xs.chunks(columns).enumerate() {
            let mut alone = vec![0.0; rows];
            linear(&weights, columns, x, &mut alone);
            assert_eq!(alone, together[token * rows..(token + 1) * rows], "token {token}");
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits_and_the_right_sum() {
        let (columns, rows) = (48, 5);
        let (weights, xs) = (numbers(columns * rows, 11), numbers(columns * 6, 5));
        let (mut fast, mut plain) = (vec![0.0; 6 * rows], vec![0.0; 6 * rows]);
        linear(&weights, columns, &xs, &mut fast);
        linear_any(&weights, columns, &xs, &mut plain);
        assert_eq!(fast, plain);
        for (token, x) in xs.chunks(columns).enumerate() {
            for (row, w) in weights.chunks(columns).enumerate() {
                let exact: f64 = w.iter().zip(x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                assert!((exact - f64::from(fast[token * rows + row])).abs() < 1e-3 * exact.abs().max(1.0));
            }
        }
    }
}
