//! Numbers of STATISTICS 5.6 typed here, the same at full precision from the vectors, and the properties that must hold.
#![expect(clippy::float_cmp, reason = "degenerate input has exact results")]
#![expect(clippy::excessive_precision, reason = "reference values are as they were computed, with 17 digits")]

use proptest::prelude::*;

use super::distribution::{
    binomial_cdf, chi_square_quantile, noncentral_t_cdf, noncentral_t_survival, t_survival, t_upper_quantile,
};
use super::rivals::Random;
use super::*;

mod published;
mod simulated;

/// Within `tolerance`, relative.
#[track_caller]
fn near(found: f64, wanted: f64, tolerance: f64) {
    let scale = wanted.abs().max(f64::MIN_POSITIVE);
    assert!((found - wanted).abs() <= tolerance * scale, "found {found:?}, wanted {wanted:?}");
}

/// The numbers of the vectors have nine digits.
const NINE_DIGITS: f64 = 6e-9;

const FEW: Result<Fieller, StatisticsError> = Err(StatisticsError::TooFew { found: 0, needed: 2 });

#[test]
fn nothing_and_one_block_are_too_few() {
    assert_eq!(paired_fieller(&[], &[], 0.95), FEW);
    let one = Err(StatisticsError::TooFew { found: 1, needed: 2 });
    assert_eq!(paired_fieller(&[1.0], &[2.0], 0.95), one);
    assert!(paired_log_ratio(&[1.0], &[2.0], 0.95).is_err() && paired_t(&[1.0], &[2.0]).is_err());
    assert!(equivalence(&[], &[], 0.02, 0.05).is_err() && at_least_better(&[], &[], 0.0, Direction::Higher).is_err());
    assert!(kalibera_jones_ratio(&[1.0], &[1.0, 2.0], 0.95).is_err());
    assert!(geometric_mean_over_levels(&[], 0.95).is_err());
    assert!(geometric_mean_over_levels(&[(&[], &[])], 0.95).is_err());
    assert!(order_effect(&[], &[], 0.95).is_err() && order_effect(&[0.1, 0.2], &[true, false], 0.95).is_err());
    assert!(variance_components(&[], &[]).is_err() && variance_components(&[], &[0]).is_err());
    assert_eq!(optimal_repeats(&[], &[]), Ok(vec![]));
    assert!(mean(&[]).is_err() && median(&[]).is_err() && sample_sd(&[1.0]).is_err() && largest_gap(&[1.0]).is_err());
    assert_eq!(outliers(&[], Fence::Severe), Ok(vec![]));
    assert!(mean_interval(&[1.0], 0.95).is_err() && percentile_interval_orders(0, 0.5, 0.95).is_err());
    assert_eq!((holm(&[], 3), benjamini_hochberg(&[], 0)), (Ok(vec![]), Ok(vec![])));
    assert!(half_width(1.0, 1, 0.95).is_err() && minimum_detectable_effect(1.0, 1, 0.05, 0.8).is_err());
}

#[test]
fn input_without_meaning_is_an_error_and_never_nan() {
    let good = [1.0, 2.0, 3.0];
    for (bad, wanted) in [
        ([1.0, 0.0, 2.0], StatisticsError::NotPositive(0.0)),
        ([1.0, -1.0, 2.0], StatisticsError::NotPositive(-1.0)),
        ([1.0, f64::INFINITY, 2.0], StatisticsError::NotFinite(f64::INFINITY)),
    ] {
        assert_eq!(paired_fieller(&good, &bad, 0.95), Err(wanted));
        assert_eq!(paired_fieller(&bad, &good, 0.95), Err(wanted));
        assert_eq!(paired_log_ratio(&bad, &good, 0.95), Err(wanted));
        assert_eq!(geometric_mean_over_levels(&[(&good, &good), (&good, &bad)], 0.95), Err(wanted));
        assert_eq!(equivalence(&good, &bad, 0.02, 0.05), Err(wanted));
        assert_eq!(kalibera_jones_ratio(&good, &bad, 0.95), Err(wanted));
    }
    assert!(matches!(paired_t(&good, &[1.0, f64::NAN, 1.0]), Err(StatisticsError::NotFinite(_))));
    assert_eq!(paired_t(&good, &good[..2]), Err(StatisticsError::Unpaired { control: 3, treatment: 2 }));
    assert!(geometric_mean_over_levels(&[(&good, &good), (&good[..2], &good[..2])], 0.95).is_err());
    for confidence in [0.0, 1.0, -0.5, 1.5, f64::NAN] {
        assert!(paired_fieller(&good, &good, confidence).is_err(), "{confidence}");
    }
    assert_eq!(paired_t(&[f64::MAX, -f64::MAX], &[-f64::MAX, f64::MAX]), Err(StatisticsError::Overflow));
    assert_eq!(paired_fieller(&[1e300, 1.01e300], &[1e-300, 1.01e-300], 0.95), Err(StatisticsError::Overflow));
    let wild = [1.0, 100.0, 1.0];
    assert!(matches!(paired_fieller(&wild, &good, 0.95), Err(StatisticsError::Unbounded { g }) if g > 1.0));
    assert!(matches!(paired_fieller(&good, &wild, 0.95), Err(StatisticsError::Unbounded { g }) if g > 1.0));
    assert!(matches!(kalibera_jones_ratio(&good, &wild, 0.95), Err(StatisticsError::Unbounded { g }) if g > 1.0));
    assert!(equivalence(&good, &good, -0.1, 0.05).is_err() && equivalence(&good, &good, 0.1, 0.5).is_err());
    assert!(holm(&[0.5, 1.5], 2).is_err() && holm(&[f64::NAN], 1).is_err() && holm(&[0.1, 0.2], 1).is_err());
    assert_eq!(order_effect(&[0.1, 0.2, 0.3], &[true; 3], 0.95), Err(StatisticsError::OneOrder));
    assert!(variance_components(&[1.0, 2.0, 3.0], &[2, 2]).is_err());
    assert!(variance_components(&[1.0, 2.0], &[1, 2]).is_err() && variance_components(&[], &[usize::MAX, 2]).is_err());
    assert!(power(f64::NAN, 1.0, 5, 0.05).is_err() && power(1.0, -1.0, 5, 0.05).is_err());
    assert!(blocks_for_power(1.0, 1.0, 0.05, 1.0).is_err() && blocks_for_power(1.0, 1.0, 0.9, 0.8).is_err());
    assert!(sd_upper_bound(1.0, 5, 1.0).is_err() && minimum_n(1.0, 0.95).is_err());
    assert!(without_block_means(&[1.0], 0).is_err() && without_block_means(&[1.0, 2.0, 3.0], 2).is_err());
}

#[test]
fn blocks_that_do_not_vary_are_decided_and_say_so() {
    let (five, six) = ([5.0; 4], [6.0; 4]);
    let found = paired_fieller(&five, &six, 0.95).expect("a result");
    assert_eq!((found.ratio, found.low, found.high, found.t, found.p), (1.2, 1.2, 1.2, f64::INFINITY, 0.0));
    let back = paired_fieller(&six, &five, 0.95).expect("a result");
    assert_eq!((back.t, back.p), (f64::NEG_INFINITY, 0.0));
    let same = paired_fieller(&five, &five, 0.95).expect("a result");
    assert_eq!((same.ratio, same.low, same.high, same.t, same.p), (1.0, 1.0, 1.0, 0.0, 1.0));
    let log = paired_log_ratio(&five, &five, 0.95).expect("a result");
    assert_eq!((log.ratio, log.low, log.high, log.t, log.p), (1.0, 1.0, 1.0, 0.0, 1.0));
    assert!(!skewed(&same, &log) && !skewed(&found, &paired_log_ratio(&five, &six, 0.95).expect("a result")));
    // Equal arms that vary together.
    let varied = [4.0, 5.0, 7.0];
    let same = paired_fieller(&varied, &varied, 0.95).expect("a result");
    assert_eq!((same.ratio, same.t, same.p), (1.0, 0.0, 1.0));
    near(same.low, 1.0, 1e-12);
    let inside = equivalence(&five, &five, 0.02, 0.05).expect("a result");
    assert_eq!((inside.p, inside.equivalent), (0.0, true));
    let outside = equivalence(&five, &six, 0.02, 0.05).expect("a result");
    assert_eq!((outside.p_lower, outside.p_upper, outside.equivalent), (0.0, 1.0, false));
    assert_eq!(at_least_better(&five, &five, 0.0, Direction::Lower).expect("a result").p, 1.0);
    assert_eq!(order_effect(&[0.0; 4], &[true, false, true, false], 0.95).expect("a result").p_order, 1.0);
    assert_eq!(order_effect(&[0.1; 3], &[true, false, true], 0.95).expect("a result").p_order, 1.0);
    assert_eq!(order_effect(&[0.1, 0.0, 0.1, 0.0], &[true, false, true, false], 0.95).expect("ok").p_order, 0.0);
    assert_eq!(
        largest_gap(&[3.0; 12]).expect("a gap"),
        LargestGap { gap: 0.0, share: 0.0, below: 0, two_modes: false }
    );
    assert_eq!((power(0.1, 0.0, 2, 0.05), power(0.0, 0.0, 2, 0.05)), (Ok(1.0), Ok(0.05)));
    assert_eq!(minimum_detectable_effect(0.0, 2, 0.05, 0.8), Ok(0.0));
    assert_eq!(
        optimal_repeats(&[Component { s2: 1.0, t2: 1.0 }, Component { s2: 0.1, t2: -0.2 }], &[1.0, 5.0]),
        Ok(vec![None])
    );
}

#[test]
fn student_and_chi_square_have_twelve_digits() {
    // Computed with 30 digits (mpmath): upper 5 %, 2.5 % and 0.5 % points for 1 to 30 degrees of freedom.
    for (df, points) in (1..).zip(STUDENT_POINTS) {
        for (tail, wanted) in [0.05, 0.025, 0.005].into_iter().zip(points) {
            near(t_upper_quantile(tail, f64::from(df)), wanted, 1e-12);
            near(t_survival(wanted, f64::from(df)), tail, 1e-12);
        }
    }
    for (t, df, wanted) in [
        (0.5, 1.0, 0.352_416_382_349_566_73),
        (2.0, 3.0, 0.069_662_984_279_421_588),
        (19.011_736_5, 4.0, 2.254_581_650_819_489_9e-5),
        (50.0, 9.0, 1.284_476_455_437_399_1e-12),
        (300.0, 4.0, 3.703_429_371_284_011_6e-10),
        (6.0, 29.0, 7.963_954_213_087_332_3e-7),
        (0.001, 7.0, 0.499_615_008_622_499_42),
    ] {
        near(t_survival(t, df), wanted, 1e-12);
        near(t_survival(-t, df), 1.0 - wanted, 1e-12);
    }
    for (probability, df, wanted) in [
        (0.2, 5.0, 2.342_534_305_841_120_7),
        (0.1, 5.0, 1.610_307_986_962_323),
        (0.2, 1.0, 0.064_184_754_667_301_58),
        (0.2, 4.0, 1.648_776_618_065_969_2),
        (0.05, 29.0, 17.708_366_182_824_582),
    ] {
        near(chi_square_quantile(probability, df), wanted, 1e-12);
    }
    near(binomial_cdf(2, 5, 0.5), 0.5, 1e-14);
    near(noncentral_t_survival(1e-200, 3.0, 1e-200), 0.5, 1e-12);
    for confidence in [1e-9, 1.0 - 1e-15] {
        let found = paired_fieller(&[1.0, 1.1, 1.2, 1.3], &[1.1, 1.2, 1.4, 1.4], confidence);
        assert!(found.is_err() || found.is_ok_and(|found| found.low <= found.ratio && found.ratio <= found.high));
    }
}

#[test]
fn noncentral_t_agrees_with_its_definition() {
    for (t, df, delta, wanted) in [
        (2.776_445_105, 4.0, 3.76, 0.799_792_424_755_02),
        (12.706_204_7, 1.0, 20.0, 0.883_394_443_967_300_7),
        (4.302_652_73, 2.0, 5.653, 0.799_946_056_810_403_7),
        (2.1, 19.0, 2.95, 0.797_135_206_844_947_6),
        (-2.776_445_105, 4.0, 3.76, 0.999_999_860_902_137_9),
    ] {
        near(noncentral_t_survival(t, df, delta), wanted, 1e-11);
        near(noncentral_t_cdf(t, df, delta), 1.0 - wanted, 1e-6);
    }
    // At t = 0 it is the normal distribution; erfc of statrs has ten digits only, which is why it is not used.
    near(noncentral_t_survival(0.0, 9.0, -1.2 * std::f64::consts::SQRT_2), 0.5 * 0.089_686_021_770_364_632, 1e-13);
    near(noncentral_t_survival(0.0, 9.0, -3.0 * std::f64::consts::SQRT_2), 0.5 * 2.209_049_699_858_544_1e-5, 1e-13);
    near(noncentral_t_survival(0.0, 9.0, 0.6 * std::f64::consts::SQRT_2), 0.5 * 1.603_856_090_847_925_9, 1e-13);
    for (t, df) in [(1.5, 1.0), (700.0, 1.0), (2.0, 2.0), (3.0, 5.0), (2.1, 40.0), (2.0, 900.0)] {
        near(noncentral_t_survival(t, df, 0.0), t_survival(t, df), 1e-10);
    }
}

fn blocks() -> impl Strategy<Value = (Vec<f64>, Vec<f64>)> {
    (2_usize..12).prop_flat_map(|n| {
        let values = || prop::collection::vec(100.0..110.0_f64, n);
        (values(), values())
    })
}

proptest! {
    #[test]
    fn exchanging_the_arms_inverts((control, treatment) in blocks(), confidence in 0.5..0.999_f64) {
        let there = paired_fieller(&control, &treatment, confidence);
        let back = paired_fieller(&treatment, &control, confidence);
        prop_assert_eq!(there.is_ok(), back.is_ok());
        if let (Ok(there), Ok(back)) = (there, back) {
            prop_assert!((there.low * back.high - 1.0).abs() < 1e-12 && (there.high * back.low - 1.0).abs() < 1e-12);
            prop_assert!((there.ratio * back.ratio - 1.0).abs() < 1e-12);
            prop_assert_eq!((there.t, there.p), (-back.t, back.p));
            prop_assert!(there.low <= there.ratio && there.ratio <= there.high && (0.0..=1.0).contains(&there.p));
        }
        let (there, back) = (paired_log_ratio(&control, &treatment, confidence), paired_log_ratio(&treatment, &control, confidence));
        if let (Ok(there), Ok(back)) = (there, back) {
            prop_assert!((there.low * back.high - 1.0).abs() < 1e-12 && (there.high * back.low - 1.0).abs() < 1e-12);
            prop_assert_eq!((there.t, there.p, there.sd_log), (-back.t, back.p, back.sd_log));
        }
    }

    #[test]
    fn a_ratio_of_one_is_rejected_exactly_when_it_is_outside((control, treatment) in blocks()) {
        if let Ok(found) = paired_fieller(&control, &treatment, 0.95) {
            let outside = found.low > 1.0 || found.high < 1.0;
            prop_assert!(outside == (found.p < 0.05) || (found.p - 0.05).abs() < 1e-9, "{found:?}");
        }
        let tests = equivalence(&control, &treatment, 0.05, 0.05).expect("a result");
        prop_assert_eq!(tests.equivalent, tests.low > 1.0 / 1.05 && tests.high < 1.05);
        let log = paired_log_ratio(&control, &treatment, 0.95).expect("a result");
        let better = at_least_better(&control, &treatment, 0.01, Direction::Higher).expect("a result");
        prop_assert!((better.p < 0.05) == (log.low > 1.01) || (better.p - 0.05).abs() < 1e-9);
        let worse = at_least_better(&treatment, &control, 0.01, Direction::Lower).expect("a result");
        prop_assert!((better.p - worse.p).abs() < 1e-12);
    }

    #[test]
    fn units_do_not_matter((control, treatment) in blocks(), unit in 1e-6..1e6_f64) {
        let scaled = |values: &[f64]| values.iter().map(|value| value * unit).collect::<Vec<f64>>();
        if let Ok(found) = paired_fieller(&control, &treatment, 0.95) {
            let again = paired_fieller(&scaled(&control), &scaled(&treatment), 0.95).expect("a result");
            prop_assert!((found.low / again.low - 1.0).abs() < 1e-9 && (found.high / again.high - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn no_input_makes_nan(values in prop::collection::vec((any::<f64>(), any::<f64>()), 0..6)) {
        let (control, treatment): (Vec<f64>, Vec<f64>) = values.into_iter().unzip();
        if let Ok(found) = paired_fieller(&control, &treatment, 0.95) {
            prop_assert!(!found.t.is_nan() && found.low <= found.high && found.p.is_finite() && found.g.is_finite());
        }
        if let Ok(found) = paired_log_ratio(&control, &treatment, 0.95) {
            prop_assert!(!found.t.is_nan() && found.low <= found.high && found.p.is_finite());
        }
        if let Ok(found) = equivalence(&control, &treatment, 0.02, 0.05) {
            prop_assert!(found.p.is_finite() && found.low <= found.high);
        }
        if let Ok(found) = kalibera_jones_ratio(&control, &treatment, 0.95) {
            prop_assert!(found.low <= found.high);
        }
        if let Ok(gap) = largest_gap(&control) {
            prop_assert!(gap.gap.is_finite() && (0.0..=1.0).contains(&gap.share));
        }
        prop_assert!(median(&control).is_ok_and(f64::is_finite) || median(&control).is_err());
    }

    #[test]
    fn adjusting_keeps_order_and_only_raises(p in prop::collection::vec(0.0..=1.0_f64, 0..8), more in 0_usize..4) {
        for adjusted in [holm(&p, p.len() + more), benjamini_hochberg(&p, p.len() + more)] {
            let adjusted = adjusted.expect("adjusted");
            prop_assert_eq!(adjusted.len(), p.len());
            for (one, two) in p.iter().zip(&adjusted) {
                prop_assert!(two >= one && *two <= 1.0);
            }
            for (at, other) in (0..p.len()).flat_map(|at| (0..p.len()).map(move |other| (at, other))) {
                prop_assert!(p[at] > p[other] || adjusted[at] <= adjusted[other]);
            }
        }
    }
}

const STUDENT_POINTS: [[f64; 3]; 30] = [
    [6.313_751_514_675_043_1, 12.706_204_736_174_705, 63.656_741_162_871_581],
    [2.919_985_580_353_725_7, 4.302_652_729_749_463_9, 9.924_843_200_918_293_1],
    [2.353_363_434_801_823_9, 3.182_446_305_283_709_6, 5.840_909_309_733_357_3],
    [2.131_846_786_326_650_3, 2.776_445_105_197_794_4, 4.604_094_871_349_993_2],
    [2.015_048_373_333_024_2, 2.570_581_835_636_315_5, 4.032_142_983_555_228_1],
    [1.943_180_280_515_303_2, 2.446_911_851_144_97, 3.707_428_021_324_779_8],
    [1.894_578_605_090_007_4, 2.364_624_251_592_785_3, 3.499_483_297_350_493_9],
    [1.859_548_037_530_898_4, 2.306_004_135_204_166_7, 3.355_387_331_333_395_5],
    [1.833_112_932_656_237_2, 2.262_157_162_798_205_5, 3.249_835_541_592_126_3],
    [1.812_461_122_811_676_4, 2.228_138_851_986_274_7, 3.169_272_672_616_951_2],
    [1.795_884_818_704_044_1, 2.200_985_160_091_639_9, 3.105_806_515_539_281],
    [1.782_287_555_649_320_1, 2.178_812_829_667_228_9, 3.054_539_589_392_902_1],
    [1.770_933_395_986_872_9, 2.160_368_656_462_792_5, 3.012_275_838_716_578_4],
    [1.761_310_135_774_892_1, 2.144_786_687_917_803_8, 2.976_842_734_370_834_7],
    [1.753_050_355_692_573_5, 2.131_449_545_559_775_7, 2.946_712_883_475_238_9],
    [1.745_883_676_276_249_9, 2.119_905_299_221_254_7, 2.920_781_622_425_1],
    [1.739_606_726_075_073, 2.109_815_577_833_317_1, 2.898_230_519_677_418_7],
    [1.734_063_606_617_538_8, 2.100_922_040_241_038_5, 2.878_440_472_738_608_1],
    [1.729_132_811_521_369_5, 2.093_024_054_408_309_8, 2.860_934_606_464_979_2],
    [1.724_718_242_920_787_3, 2.085_963_447_265_864_8, 2.845_339_709_786_108_5],
    [1.720_742_902_811_878_5, 2.079_613_844_727_680_4, 2.831_359_558_023_05],
    [1.717_144_374_380_242_8, 2.073_873_067_904_026_2, 2.818_756_060_600_143_5],
    [1.713_871_527_747_048_1, 2.068_657_610_419_048_7, 2.807_335_683_769_999],
    [1.710_882_079_909_428_4, 2.063_898_561_628_025_8, 2.796_939_504_774_456_3],
    [1.708_140_761_251_899_3, 2.059_538_552_753_297_7, 2.787_435_813_676_970_5],
    [1.705_617_919_759_273_2, 2.055_529_438_642_873_2, 2.778_714_533_329_683_2],
    [1.703_288_445_722_127_1, 2.051_830_516_480_285_6, 2.770_682_957_122_212],
    [1.701_130_934_265_931_6, 2.048_407_141_795_245_2, 2.763_262_455_461_444_6],
    [1.699_127_026_533_497_8, 2.045_229_642_132_704_3, 2.756_385_903_670_605_5],
    [1.697_260_886_593_957_8, 2.042_272_456_301_238_3, 2.749_995_653_567_225_3],
];
