//! Every call and every slip: what a chapter may say, and what it is told.

use proptest::prelude::*;

use crate::diagnostic::Style;

use super::*;

fn found(text: &str) -> Vec<Directive> {
    let source = crate::yaml::source("chapter.md", text);
    find(&source).unwrap_or_else(|problems| panic!("{}", problems.render(Style::Plain)))
}

fn refused(text: &str) -> String {
    let source = crate::yaml::source("chapter.md", text);
    find(&source).expect_err(text).render(Style::Plain)
}

fn experiment(name: &str) -> ExperimentTarget {
    ExperimentTarget { experiment: name.to_owned(), edition: None }
}

fn claim(name: &str, claim: &str) -> ClaimTarget {
    ClaimTarget { of: experiment(name), claim: claim.to_owned() }
}

#[test]
fn an_empty_chapter_has_none() {
    assert_eq!(found(""), []);
    assert_eq!(found("{{"), []);
    assert_eq!(found("{{}}"), []);
}

#[test]
fn each_name_is_understood() {
    let at = |text: &str| Level(text.to_owned());
    let cases = [
        (r#"{{ claim("quickstart/faster-at-16") }}"#, Call::Claim(claim("quickstart", "faster-at-16"))),
        (
            r#"{{claim(target="oea@4f2a91c0/c")}}"#,
            Call::Claim(ClaimTarget {
                of: ExperimentTarget { experiment: "oea".into(), edition: Some("4f2a91c0".into()) },
                claim: "c".into(),
            }),
        ),
        (r#"{{ effect("oea/c") }}"#, Call::Effect(Effect::Claim(claim("oea", "c")))),
        (r#"{{ effect("oea") }}"#, Call::Effect(Effect::Headline(experiment("oea")))),
        (
            "{{ effect(\"oea\",\n metric=\"total_throughput\", treatment=\"k0-4\", at=8.5) }}",
            Call::Effect(Effect::Condition {
                experiment: experiment("oea"),
                metric: Metric::TotalThroughput,
                treatment: "k0-4".into(),
                at: at("8.5"),
            }),
        ),
        (r#"{{ verdict("oea/c",) }}"#, Call::Verdict(Verdict::Claim(claim("oea", "c")))),
        (r#"{{ verdict("oea") }}"#, Call::Verdict(Verdict::Headline(experiment("oea")))),
        (
            r#"{{ value("oea/c", arm="off") }}"#,
            Call::Value(Value::Claim { target: claim("oea", "c"), arm: "off".into() }),
        ),
        (
            r#"{{ value("oea", metric="output_throughput", arm="off", at="inf") }}"#,
            Call::Value(Value::Condition {
                experiment: experiment("oea"),
                metric: Metric::OutputThroughput,
                arm: "off".into(),
                at: at("inf"),
            }),
        ),
        (
            r#"{{ value(run="1a2b", metric="output_throughput") }}"#,
            Call::Value(Value::Run { prefix: "1a2b".into(), metric: Metric::OutputThroughput }),
        ),
        (r#"{{ table("aa") }}"#, Call::Table { experiment: experiment("aa"), metric: None }),
        (
            r#"{{ chart("aa", "effect", metric="output_throughput") }}"#,
            Call::Chart {
                experiment: experiment("aa"),
                kind: ChartKind::Effect,
                metric: Some(Metric::OutputThroughput),
            },
        ),
        (r#"{{ provenance("aa") }}"#, Call::Provenance(Provenance::Experiment(experiment("aa")))),
        (r#"{{ provenance(run="00ff") }}"#, Call::Provenance(Provenance::Run("00ff".into()))),
        (
            r#"{{ reference("cutedsl", "ceiling") }}"#,
            Call::Reference { experiment: experiment("cutedsl"), name: "ceiling".into() },
        ),
        (
            r#"{{ quote("352.79 \"tok/s\" \\ C:\x", "notes", "2026-02-11") }}"#,
            Call::Quote {
                value: r#"352.79 "tok/s" \ C:\x"#.into(),
                source: "notes".into(),
                date: jiff::civil::date(2026, 2, 11),
            },
        ),
        (
            r#"{{ quote(2.0, source="notes", date="2026-02-11") }}"#,
            Call::Quote { value: "2.0".into(), source: "notes".into(), date: jiff::civil::date(2026, 2, 11) },
        ),
    ];
    for (text, call) in cases {
        let all = found(&format!("Words {text} words."));
        assert_eq!(all.len(), 1, "{text}");
        assert_eq!(all[0].call, call);
        assert_eq!((all[0].span.clone(), all[0].line, all[0].column), (6..6 + text.len(), 1, 7), "{text}");
    }
}

#[test]
fn directives_are_found_wherever_prose_stands() {
    let text = "# é {{ verdict(\"a/h\") }}\n\n| a | b |\n|---|---|\n| {{ effect(\"a/t\") }} | **{{ effect(\"a/e\") }}** |\n\n\
        > [see {{ claim(\"a/l\") }}](x.md) <b>{{ claim(\"a/b\") }}</b>\n\n<div>{{ claim(\"a/d\") }}</div>\n";
    let names: Vec<(usize, usize, &str)> = found(text)
        .iter()
        .map(|directive| match &directive.call {
            Call::Verdict(Verdict::Claim(of)) | Call::Effect(Effect::Claim(of)) | Call::Claim(of) => {
                (directive.line, directive.column, of.claim.clone().leak() as &str)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(names, [(1, 5, "h"), (5, 3, "t"), (5, 27, "e"), (7, 8, "l"), (7, 37, "b"), (9, 6, "d")]);
}

#[test]
fn code_and_comments_are_text() {
    let call = "{{ claim(\"a/b\") }}";
    for text in [
        format!("`{call}`"),
        format!("``x ` {call}``"),
        format!("```\n{call}\n```"),
        format!("~~~jinja\n{call}\n\n{call}"),
        format!("- item\n\n      {call}\n"),
        format!("    {call}\n"),
        format!("words <!-- {call} --> words"),
        format!("<!--\n\n{call}\n-->\n"),
        format!("<div>\n<!-- a\n\n{call}\n-->\n</div>"),
        format!("<pre>\n{call}\n\n{call}</pre>\n"),
        format!("\\{call}"),
    ] {
        assert_eq!(found(&text), [], "{text}");
    }
    let after = format!("`{call}` <!-- {call} --> {call}\n\n```\n{call}\n```\n{call}");
    assert_eq!(found(&after).len(), 2);
}

#[test]
fn the_braces_of_others_are_text() {
    for text in [
        "{{ bos_token }}{% for message in messages %}{{ message['content'] | trim }}",
        "{{#include claim.md}} {{#title x}}",
        "{{ .Values.image.tag }} {{ quote .Values.x }} {{ quote (default \"x\" .Values.y) }} {{ value }} {{ claim }}",
        "{{ raise_exception('roles') }} {{ range(10) }} {{ super() }} {{ tojson(x) }} {{ joblib_call(\"x\") }}",
        "{{ \"claim(\" }} {{(claim)}} { { claim(\"a/b\") } } $\\frac{{a}}{{b}}$",
    ] {
        assert_eq!(found(text), [], "{text}");
    }
}

#[test]
fn a_near_miss_is_shown_with_the_name_that_was_meant() {
    insta::assert_snapshot!(refused("One.\n\nSee {{ clam(\"a/b\") }} and {{ Provenence(\"a\") }}."), @r#"
    error: `clam` is not a directive
     --> chapter.md:3:8
      |
    3 | See {{ clam("a/b") }} and {{ Provenence("a") }}.
      |        ^^^^ not a name of ours
      |
    help: did you mean `claim`? (text that shall stay as it is goes into code)

    error: `Provenence` is not a directive
     --> chapter.md:3:30
      |
    3 | See {{ clam("a/b") }} and {{ Provenence("a") }}.
      |                              ^^^^^^^^^^ not a name of ours
      |
    help: did you mean `provenance`? (text that shall stay as it is goes into code)
    "#);
}

#[test]
fn what_cannot_be_understood_says_what_was_found_and_expected() {
    let cases = [
        (r"{{ claim() }}", "`claim` has no `target`"),
        (r#"{{ claim("") }}"#, "`target` is empty"),
        (r#"{{ claim("a") }}"#, "`a` names no claim"),
        (r#"{{ claim("a/") }}"#, "`` cannot name a claim: it is empty"),
        (r#"{{ claim("/b") }}"#, "`` cannot name an experiment: it is empty"),
        (r#"{{ claim("../b") }}"#, "`..` cannot name an experiment"),
        (r#"{{ claim("a@/b") }}"#, "`` is not an edition"),
        (r#"{{ claim("a@4F2A/b") }}"#, "`4F2A` is not an edition"),
        (r"{{ claim(7) }}", "`target` is the number 7"),
        (r"{{ claim(a/b) }}", "`a` is neither text nor a number"),
        (r"{{ claim('a/b') }}", "found `\\'`"),
        (r#"{{ claim("a/b", "c") }}"#, "`claim` takes one argument without a key"),
        (r#"{{ claim("a/b", at=3) }}"#, "`claim` has no argument `at`"),
        (r#"{{ claim ("a/b") }}"#, "a blank between `claim` and `(`"),
        (r#"{{ claim("a/b" }} and on"#, "`claim(…)` is not closed: found `}`"),
        (r#"{{ claim("a/b") } and on"#, "`claim(…)` is not closed: found `}`"),
        (r#"{{ claim("a/b"#, "text without its closing `\"`"),
        (r"{{ claim(", "found the end of the text"),
        ("{{ claim(\"a/b\"\n\n) }}", "`claim(…)` is not closed: found the end of the paragraph"),
        (r#"{{ effect("a/b", at=3) }}"#, "`at` beside a claim"),
        (r#"{{ effect("a", at=3) }}"#, "`effect` has no `metric`"),
        (r#"{{ effect("a", metric="output_throughput", treatment="x", at=-3) }}"#, "`at` is `-3`"),
        (r#"{{ value("a/b") }}"#, "`value` has no `arm`"),
        (r#"{{ value("a", run="1234", metric="x") }}"#, "`target` beside `run`"),
        (r#"{{ value(run="12", metric="output_throughput") }}"#, "`12` is not the beginning of a run's id"),
        (r#"{{ table("a/b") }}"#, "`/b` behind an experiment"),
        (r#"{{ table("a", metric="output_troughput") }}"#, "did you mean `output_throughput`?"),
        (r#"{{ table("a", metrics="output_throughput") }}"#, "did you mean `metric`?"),
        (r#"{{ table("a", experiment="b") }}"#, "`experiment` is given twice"),
        (r#"{{ chart("a") }}"#, "`chart` has no `kind`"),
        (r#"{{ chart("a", "effects") }}"#, "did you mean `effect`?"),
        (r#"{{ quote("1", "s", "11.2.2026") }}"#, "`11.2.2026` is not a date"),
        (r#"{{ quote(1.2.3, "s", "2026-02-11") }}"#, "found `1`"),
    ];
    for (text, expected) in cases {
        let shown = refused(text);
        assert!(shown.contains(expected), "{text}\n{shown}");
        assert!(shown.contains("--> chapter.md:"), "{text}\n{shown}");
    }
}

#[test]
fn after_a_problem_the_rest_is_still_read() {
    let shown =
        refused("{{ claim(x) }} {{ claim(\"a/b\") }} {{ clain(\"a/b\") }}\n\n{{ verdict( }} {{ verdict(\"\") }}");
    assert_eq!(shown.matches("error:").count(), 4, "{shown}");
}

proptest! {
    #[test]
    fn any_text_is_read(text in r#"([a-z{}()"`<>!=,/@0-9.\\ \n-]|\{\{ |claim\(|"a/b"|\) \}\}|```\n|<!--|-->|é)*"#) {
        let source = crate::yaml::source("x.md", &text);
        match find(&source) {
            Ok(directives) => {
                let mut end = 0;
                for directive in directives {
                    prop_assert!(directive.span.start >= end);
                    end = directive.span.end;
                    let slice = &source.text[directive.span];
                    prop_assert!(slice.starts_with("{{") && slice.ends_with("}}"));
                }
            }
            Err(problems) => {
                prop_assert!(problems.has_errors());
                prop_assert!(!problems.render(Style::Plain).is_empty());
            }
        }
    }

    #[test]
    fn text_without_braces_has_none(text in "\\PC*") {
        prop_assert_eq!(found(&text.replace("{{", "")), vec![]);
    }
}
