//! Both charts, with what is usual and with everything that plotters must not see.

use proptest::prelude::*;

use super::*;

const STYLE: &str = include_str!("../../templates/chart.css");

fn point(level: f64, mean: f64, half: f64) -> Point {
    let shown = Shown::Measured { mean, interval: Some((mean - half, mean + half)) };
    Point { level, label: format!("c={level}"), shown }
}

fn absent(level: f64, why: &str) -> Point {
    Point { level, label: format!("c={level}"), shown: Shown::Absent { why: why.to_owned() } }
}

fn moment_of_doubt() -> ThroughputChart {
    ThroughputChart {
        id: "doubt".to_owned(),
        title: "Output throughput by concurrency".to_owned(),
        description: "Two arms from 1 to 1024 requests in flight.".to_owned(),
        x_label: "concurrency".to_owned(),
        y_label: "output_throughput, tok/s".to_owned(),
        arms: vec![
            Arm {
                name: "cutlass".to_owned(),
                points: vec![
                    point(1.0, 10.36, 0.2),
                    point(2.0, 19.29, 0.4),
                    point(10.0, 64.3, 3.0),
                    absent(64.0, "refused (source.commit)"),
                    point(256.0, 718.83, 40.0),
                    point(1024.0, 1603.04, 90.0),
                ],
            },
            Arm {
                name: "cutedsl".to_owned(),
                points: vec![
                    point(1.0, 10.07, 0.2),
                    point(2.0, 19.24, 0.4),
                    point(10.0, 64.29, 3.0),
                    absent(64.0, "refused (source.commit)"),
                    point(256.0, 515.58, 30.0),
                    absent(1024.0, "failed: out of memory"),
                ],
            },
        ],
    }
}

fn change(label: &str, at: f64, low: f64, high: f64, firm: bool) -> EffectRow {
    let interval = Some(Interval { low_percent: low, high_percent: high });
    let text = format!("{at:+.1} % [{low:+.1}, {high:+.1}]");
    let shown = ShownEffect::Measured { change_percent: at, interval, text, firm };
    EffectRow { label: label.to_owned(), shown }
}

fn refused(label: &str, why: &str) -> EffectRow {
    EffectRow { label: label.to_owned(), shown: ShownEffect::Absent { why: why.to_owned() } }
}

fn effects() -> EffectChart {
    EffectChart {
        id: "effects".to_owned(),
        title: "Change of output throughput".to_owned(),
        description: "Five conditions; one is refused.".to_owned(),
        x_label: "change of output_throughput, %".to_owned(),
        margin_percent: Some(2.0),
        rows: vec![
            change("c=1", 0.2, -0.9, 1.3, true),
            change("c=16", 5.7, 4.1, 7.3, true),
            refused("c=64", "refused (source.commit)"),
            change("c=256", -3.4, -9.0, 2.2, false),
            refused("c=1024", "void (S09): the server was out of memory"),
        ],
    }
}

/// Checks that every element is closed in order, every quote is paired, and nothing is in the output that must not be.
fn sound(svg: &str) {
    assert!(svg.lines().all(|line| !line.trim().is_empty()), "a blank line ends HTML in Markdown: {svg}");
    let mut open: Vec<&str> = Vec::new();
    for part in svg.split('<').skip(1) {
        let (tag, text) = part.split_once('>').expect("a tag ends");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        assert!(!tag.contains("NaN") && !tag.contains("inf"), "{tag}");
        assert!(!text.contains(['"', '*', '_', '`', '[', '{', '|', '\\']), "{text}");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or("");
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{svg}");
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

fn texts(svg: &str) -> Vec<&str> {
    let inside = |part: &'_ str| part.split_once('>').map(|(_, text)| text.to_owned().leak() as &str);
    svg.split("<text").skip(1).filter_map(|part| inside(part.split("</text>").next()?)).collect()
}

#[test]
fn without_data_a_chart_says_so() {
    let empty = ThroughputChart { arms: vec![], ..moment_of_doubt() };
    let drawn = throughput(&empty, Size::Wide).expect("drawn");
    sound(&drawn);
    assert_eq!(texts(&drawn), ["No number to draw."]);
    let empty = EffectChart { rows: vec![], ..effects() };
    let drawn = effect(&empty, Size::Narrow).expect("drawn");
    sound(&drawn);
    assert_eq!(texts(&drawn), ["No number to draw."]);
}

#[test]
fn a_chart_without_numbers_has_its_reasons() {
    let mut view = moment_of_doubt();
    view.arms = vec![Arm { name: "off".into(), points: vec![absent(1.0, "void (S09)"), point(0.0, 5.0, 1.0)] }];
    let drawn = throughput(&view, Size::Wide).expect("drawn");
    assert_eq!(texts(&drawn), ["No number to draw.", "c=0: not on a logarithmic axis", "c=1: void (S09)"]);
}

#[test]
fn throughput_looks_like_this() {
    let drawn = throughput(&moment_of_doubt(), Size::Wide).expect("drawn");
    sound(&drawn);
    insta::assert_snapshot!(drawn);
}

#[test]
fn effects_look_like_this() {
    let drawn = effect(&effects(), Size::Wide).expect("drawn");
    sound(&drawn);
    insta::assert_snapshot!(drawn);
}

#[test]
fn a_page_gets_both_sizes_with_identifiers_of_their_own() {
    let html = for_page(|size| effect(&effects(), size)).expect("drawn");
    sound(&html);
    for id in ["effects-wide-title", "effects-wide-desc", "effects-narrow-title", "effects-narrow-desc"] {
        assert_eq!(html.matches(&format!("id=\"{id}\"")).count(), 1, "{id}");
    }
}

#[test]
fn every_point_is_drawn_or_explained() {
    let mut view = moment_of_doubt();
    view.arms[1].points.retain(|point| point.level.to_bits() != 2f64.to_bits());
    view.arms[0].points.push(point(f64::INFINITY, 7.0, 1.0));
    view.arms[0].points.push(point(4.0, f64::NAN, 1.0));
    let drawn = throughput(&view, Size::Wide).expect("drawn");
    sound(&drawn);
    let shown = texts(&drawn).join("\n");
    for note in [
        "c=2, cutedsl: no run",
        "c=4, cutlass: its mean is no finite number",
        "c=4, cutedsl: no run",
        "c=64: refused (source.commit)",
        "c=1024, cutedsl: failed: out of memory",
    ] {
        assert!(shown.contains(note), "{note}\n{shown}");
    }
    assert!(shown.contains("c=inf, cutlass: not on a logarithmic axis"), "{shown}");
    // A line from c=10 to c=256 would claim something about c=64.
    let lines = drawn.matches("stroke-width=\"2\"").count();
    assert_eq!(lines, 2, "cutlass from 1 to 2 and from 256 to 1024: {drawn}");
}

#[test]
fn a_reason_that_has_no_room_in_its_row_is_a_note() {
    let mut view = effects();
    let why = "void (S09): ".to_owned() + &"the server was out of memory ".repeat(6) + "END";
    view.rows[2] = refused("c=64", &why);
    let drawn = effect(&view, Size::Narrow).expect("drawn");
    sound(&drawn);
    let shown = texts(&drawn).join(" ");
    assert!(shown.contains("…") && shown.contains("memory END"), "{shown}");
}

#[test]
fn text_from_elsewhere_is_text() {
    let hostile =
        "</text><script>alert(1)</script>\n\n*a* `b` {{ claim(\"a/b\") }} \u{202e}x\u{0} ]]> &amp; \"onload=\"";
    let mut view = effects();
    view.id = "a\" onload=\"alert(1)".to_owned();
    view.title = hostile.to_owned();
    view.description = hostile.to_owned();
    view.x_label = hostile.to_owned();
    view.rows[0].label = hostile.to_owned();
    view.rows[2] = refused(hostile, hostile);
    let drawn = for_page(|size| effect(&view, size)).expect("drawn");
    sound(&drawn);
    assert!(!drawn.contains("<script") && !drawn.contains("{{") && !drawn.contains('\u{202e}'), "{drawn}");
    let mut view = moment_of_doubt();
    view.arms[0].name = hostile.repeat(50);
    view.arms[1].points[3] = absent(64.0, hostile);
    sound(&for_page(|size| throughput(&view, size)).expect("drawn"));
}

#[test]
fn every_class_has_a_colour_in_the_style_sheet() {
    let mut view = moment_of_doubt();
    view.arms = (0..9).map(|arm| Arm { name: format!("arm {arm}"), ..view.arms[0].clone() }).collect();
    let html =
        throughput(&view, Size::Wide).expect("drawn") + &for_page(|size| effect(&effects(), size)).expect("drawn");
    let mut classes: Vec<&str> = html.split("class=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    classes.sort_unstable();
    classes.dedup();
    assert!(classes.len() > 15, "{classes:?}");
    for class in classes.into_iter().filter(|class| *class != "lb-chart-wide") {
        assert!(STYLE.contains(&format!(".{class} ")) || STYLE.contains(&format!(".{class},")), "{class}");
    }
}

#[test]
fn labels_at_line_ends_do_not_touch() {
    let mut view = moment_of_doubt();
    let same =
        |arm: usize| Arm { name: format!("arm {arm}"), points: vec![point(1.0, 5.0, 0.1), point(2.0, 9.0, 0.1)] };
    view.arms = (0..30).map(same).collect();
    for size in [Size::Wide, Size::Narrow] {
        let drawn = throughput(&view, size).expect("drawn");
        let mut heights: Vec<f64> = drawn
            .lines()
            .filter(|line| line.contains(">arm "))
            .filter_map(|line| line.split("y=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        heights.sort_by(f64::total_cmp);
        assert_eq!(heights.len(), 30);
        assert!(heights.windows(2).all(|pair| pair[1] - pair[0] > 16.0), "{heights:?}");
    }
}

#[test]
fn widths_are_those_of_helvetica() {
    assert!((svg::em("") - 0.0).abs() < 1e-9);
    // Adobe Core 14 AFM: W 944, i 222, space 278.
    assert!((svg::em("W i") - 1.444).abs() < 1e-9);
    assert_eq!(svg::fitted("throughput", 1000.0, 12.0), "throughput");
    assert_eq!(svg::fitted("throughput", 46.0, 12.0), "throu…");
    assert_eq!(svg::wrapped("c=64: refused", 70.0, 12.0), ["c=64:", "refused"]);
    assert_eq!(svg::wrapped("", 60.0, 12.0), Vec::<String>::new());
}

fn any_float() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => proptest::num::f64::ANY,
        4 => -10.0..3000.0f64,
        1 => prop_oneof![
            Just(0.0), Just(-0.0), Just(1.0), Just(1e12), Just(1e-12), Just(5e-324), Just(f64::MAX), Just(f64::NAN),
            Just(f64::INFINITY), Just(f64::NEG_INFINITY)
        ],
    ]
}

prop_compose! {
    fn any_point()(
        level in any_float(), mean in any_float(), low in any_float(), high in any_float(),
        kind in 0..4u8, label in "\\PC{0,8}",
    ) -> Point {
        let shown = match kind {
            0 => Shown::Absent { why: label.clone() },
            1 => Shown::Measured { mean, interval: None },
            _ => Shown::Measured { mean, interval: Some((low, high)) },
        };
        Point { level, label, shown }
    }
}

prop_compose! {
    fn any_row()(
        at in any_float(), low in any_float(), high in any_float(), kind in 0..4u8, firm: bool, text in ".{0,12}",
    ) -> EffectRow {
        let interval = Some(Interval { low_percent: low, high_percent: high }).filter(|_| kind > 1);
        let shown = match kind {
            0 => ShownEffect::Absent { why: text.clone() },
            _ => ShownEffect::Measured { change_percent: at, interval, text: text.clone(), firm },
        };
        EffectRow { label: text, shown }
    }
}

proptest! {
    #[test]
    fn any_points_are_drawn(
        arms in prop::collection::vec((".{0,9}", prop::collection::vec(any_point(), 0..7)), 0..4),
    ) {
        let arms = arms.into_iter().map(|(name, points)| Arm { name, points }).collect();
        let view = ThroughputChart { arms, ..moment_of_doubt() };
        for size in [Size::Wide, Size::Narrow] {
            let drawn = throughput(&view, size).expect("drawn");
            sound(&drawn);
            prop_assert_eq!(&drawn, &throughput(&view, size).expect("drawn"));
        }
    }

    #[test]
    fn any_changes_are_drawn(rows in prop::collection::vec(any_row(), 0..8), margin in prop::option::of(any_float())) {
        let view = EffectChart { rows, margin_percent: margin, ..effects() };
        for size in [Size::Wide, Size::Narrow] {
            sound(&effect(&view, size).expect("drawn"));
        }
    }
}
