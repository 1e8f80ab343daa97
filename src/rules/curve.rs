//! Rules about one metric and treatment over all its levels. They never delete a point or choose a winner: they say which
//! point to measure again.

use crate::metric::{Better, Metric};
use crate::question::Level;
use crate::validity::Severity;

use super::Fault;

/// Slopes of clean throughput curves rise by up to 0.075; the founding example by 0.51.
const SLOPE_RISE: f64 = 0.10;
/// Standard deviations of a difference beyond which a point stands out.
const OUTLIER_SDS: f64 = 4.0;
/// Assumed noise of a point where nothing was measured.
const DEFAULT_SD: f64 = 0.03;
/// Effects smaller than this on either side are no sign flip.
const FLIP_SHARE: f64 = 0.05;
/// Distance from a simple ratio.
const SIMPLE_SHARE: f64 = 0.015;
/// Ratios that ask for the number of cards, or half the prompts.
const SIMPLE_RATIOS: [f64; 8] = [2.0, 3.0, 4.0, 8.0, 1.0 / 2.0, 1.0 / 3.0, 1.0 / 4.0, 1.0 / 8.0];
/// "Equal" for the rule about discontinuities.
const EQUAL_SHARE: f64 = 0.01;
/// "Far apart" for the same rule.
const FAR_SHARE: f64 = 0.25;
/// Effects beyond these are more often mistakes than findings.
const TOO_GOOD: (f64, f64) = (0.7, 1.5);

/// One level of a curve.
#[derive(Debug, Clone, PartialEq)]
pub struct CurvePoint {
    /// The level.
    pub level: Level,
    /// The control's mean over blocks.
    pub control: f64,
    /// The treatment's mean over blocks.
    pub treatment: f64,
    /// Noise of one arm at this level as a relative standard deviation, if it is known.
    pub relative_sd: Option<f64>,
    /// Whether a second source confirms the effect.
    pub confirmed: bool,
}

impl CurvePoint {
    fn ratio(&self) -> f64 {
        self.treatment / self.control
    }

    fn log_ratio(&self) -> f64 {
        self.ratio().ln()
    }
}

/// The comparable levels of one metric and treatment, by rising level.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    metric: Metric,
    control: String,
    treatment: String,
    points: Vec<CurvePoint>,
}

impl Curve {
    /// Makes a curve of the points whose level is a finite number and whose means are above 0.
    pub fn new(metric: Metric, control: &str, treatment: &str, points: Vec<CurvePoint>) -> Self {
        let mut points: Vec<CurvePoint> = points
            .into_iter()
            .filter(|point| point.level.number() > 0.0 && point.level.number().is_finite())
            .filter(|point| point.control > 0.0 && point.treatment > 0.0)
            .collect();
        points.sort_by(|one, two| one.level.number().total_cmp(&two.level.number()));
        Self { metric, control: control.to_owned(), treatment: treatment.to_owned(), points }
    }
}

/// S06: the log-log slope of a rate rises; the point before the rise is suspect.
pub(super) fn bends_up(curve: &Curve) -> Vec<(Level, Fault)> {
    if curve.metric.better() != Better::Higher {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (arm, of) in [
        (&curve.control, (|point| point.control) as fn(&CurvePoint) -> f64),
        (&curve.treatment, |point: &CurvePoint| point.treatment),
    ] {
        for three in curve.points.windows(3) {
            let slope = |from: &CurvePoint, to: &CurvePoint| {
                (of(to) / of(from)).ln() / (to.level.number() / from.level.number()).ln()
            };
            let (before, after) = (slope(&three[0], &three[1]), slope(&three[1], &three[2]));
            if after - before > SLOPE_RISE {
                found.push((
                    three[1].level.clone(),
                    Fault::new(
                        Severity::Warn,
                        format!("the slope of `{arm}` rises from {before:.3} to {after:.3} at {}", three[1].level),
                        "measure this level again in both arms",
                    ),
                ));
            }
        }
    }
    found
}

/// S07: one effect that its neighbours do not show.
pub(super) fn stands_out(curve: &Curve) -> Vec<(Level, Fault)> {
    let judged = curve.points.windows(3).filter_map(|three| {
        let place = |point: &CurvePoint| point.level.number().ln();
        let share = (place(&three[1]) - place(&three[0])) / (place(&three[2]) - place(&three[0]));
        let expected = three[0].log_ratio() + share * (three[2].log_ratio() - three[0].log_ratio());
        let left = three[1].log_ratio() - expected;
        let sd = three[1].relative_sd.unwrap_or(DEFAULT_SD);
        (left.abs() > OUTLIER_SDS * std::f64::consts::SQRT_2 * sd).then(|| {
            let message = format!(
                "the effect at {} is {:+.1} %; its neighbours would have it at {:+.1} %",
                three[1].level,
                (three[1].ratio() - 1.0) * 100.0,
                (expected.exp() - 1.0) * 100.0
            );
            (three[1].level.clone(), Fault::new(Severity::Warn, message, "measure this level again in both arms"))
        })
    });
    judged.collect()
}

/// S08: better here and worse at the next level.
pub(super) fn flips(curve: &Curve) -> Vec<(Level, Fault)> {
    let mut found = Vec::new();
    for two in curve.points.windows(2) {
        let effects = [two[0].ratio() - 1.0, two[1].ratio() - 1.0];
        if effects[0] * effects[1] < 0.0 && effects.iter().all(|effect| effect.abs() > FLIP_SHARE) {
            let message = format!(
                "the sign flips: {:+.1} % at {}, {:+.1} % at {}",
                effects[0] * 100.0,
                two[0].level,
                effects[1] * 100.0,
                two[1].level
            );
            let fault = Fault::new(Severity::Warn, message, "claim single levels; there is no overall effect");
            found.push((two[0].level.clone(), fault.clone()));
            found.push((two[1].level.clone(), fault));
        }
    }
    found
}

/// S09: a ratio that smells of twice the cards or half the prompts.
pub(super) fn simple_ratio(curve: &Curve) -> Vec<(Level, Fault)> {
    let near = |point: &CurvePoint| {
        SIMPLE_RATIOS.into_iter().find(|simple| (point.ratio() / simple - 1.0).abs() <= SIMPLE_SHARE)
    };
    let judged = curve.points.iter().filter_map(|point| near(point).map(|simple| (point, simple)));
    judged
        .map(|(point, simple)| {
            let message = format!("the ratio {:.4} is within 1.5 % of {simple:.4}", point.ratio());
            let help = "compare the number of GPUs, the parallel sizes and the number of prompts of both arms";
            (point.level.clone(), Fault::new(Severity::Warn, message, help))
        })
        .collect()
}

/// S31: equal at one level and far apart at the next.
pub(super) fn discontinuity(curve: &Curve) -> Vec<(Level, Fault)> {
    let mut found = Vec::new();
    for two in curve.points.windows(2) {
        // In relation to the larger one, so that exchanging the arms changes nothing.
        let effect = |point: &CurvePoint| 1.0 - point.ratio().min(1.0 / point.ratio());
        for (equal, far) in [(&two[0], &two[1]), (&two[1], &two[0])] {
            if effect(equal) < EQUAL_SHARE && effect(far) > FAR_SHARE {
                let message = format!(
                    "equal within {:.1} % at {} and {:.0} % apart at {}",
                    effect(equal) * 100.0,
                    equal.level,
                    effect(far) * 100.0,
                    far.level
                );
                found.push((
                    far.level.clone(),
                    Fault::new(Severity::Warn, message, "measure this level again in both arms"),
                ));
            }
        }
    }
    found
}

/// S35: too good to be a claim without a second, interleaved measurement, unless the server's own log says the same.
pub(super) fn too_good(curve: &Curve) -> Vec<(Level, Fault)> {
    let suspect = curve
        .points
        .iter()
        .filter(|point| !point.confirmed && (point.ratio() > TOO_GOOD.1 || point.ratio() < TOO_GOOD.0));
    suspect
        .map(|point| {
            let message = "an effect beyond +50 % or -30 % needs a second measurement";
            let help = "run both arms again in blocks, at least an hour later: `labbook run SPEC --more 3`";
            (point.level.clone(), Fault::new(Severity::Claim, message, help))
        })
        .collect()
}

/// S05: an effect (log ratio) that the control shows against itself. `floor` is the half width that chance alone gives.
pub fn floor_reason(log_ratio: f64, floor: f64) -> Option<Fault> {
    (log_ratio.abs() < floor).then(|| {
        Fault::new(
            Severity::Claim,
            format!(
                "an effect of {:+.2} % is inside the noise floor of {:.2} %: the control differs as much from itself",
                (log_ratio.exp() - 1.0) * 100.0,
                floor.exp_m1() * 100.0
            ),
            "add blocks (`labbook run --more N`): the floor shrinks with their number",
        )
    })
}

/// S45: the fault of an "unchanged" that nothing could have refuted.
pub fn unproven_reason(arm: &str) -> Fault {
    Fault::new(
        Severity::Claim,
        format!("nothing proves that `{arm}` was active, and a treatment that did nothing changes nothing"),
        format!("add `evidence: {{ {arm}: {{ log: \"…\" }} }}`: text that the server logs only when it is active"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(u32, f64, f64)]) -> Curve {
        let made = |(level, control, treatment): &(u32, f64, f64)| CurvePoint {
            level: Level(level.to_string()),
            control: *control,
            treatment: *treatment,
            relative_sd: None,
            confirmed: false,
        };
        Curve::new(Metric::OutputThroughput, "cutlass", "cutedsl", points.iter().map(made).collect())
    }

    fn levels(found: &[(Level, Fault)]) -> Vec<&str> {
        found.iter().map(|(level, _)| level.0.as_str()).collect()
    }

    #[test]
    fn the_first_founding_example_is_doubted_by_six_rules() {
        let moment = curve(&[
            (1, 10.36, 10.07),
            (2, 19.29, 19.24),
            (10, 38.46, 64.29),
            (64, 218.74, 249.23),
            (256, 718.83, 515.58),
            (1024, 1603.04, 796.93),
        ]);
        assert_eq!(levels(&bends_up(&moment)), ["10"], "0.429 to 0.936, in the control alone");
        assert!(levels(&stands_out(&moment)).contains(&"10"));
        assert_eq!(levels(&flips(&moment)), ["64", "256"]);
        assert_eq!(levels(&simple_ratio(&moment)), ["1024"]);
        assert_eq!(levels(&discontinuity(&moment)), ["10"]);
        assert_eq!(levels(&too_good(&moment)), ["10", "1024"]);
    }

    #[test]
    fn a_curve_of_nothing_or_of_one_point_is_silent() {
        for points in [&[][..], &[(1, 10.0, 10.1)][..], &[(1, 0.0, 10.0), (2, 1.0, f64::NAN)][..]] {
            let short = curve(points);
            let found =
                [bends_up, stands_out, flips, simple_ratio, discontinuity, too_good].map(|rule| rule(&short).len());
            assert_eq!(found, [0; 6], "{points:?}");
        }
        assert!(floor_reason(0.01, 0.0).is_none());
    }
}
