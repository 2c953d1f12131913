use tprimat_job::FailureClass;
use tprimat_numbers::figures::{
    Catalogue, CellInput, CellState, CompareSettings, Cut, EnvironmentDifference, Figure, Metric,
    Row, compare,
};
use tprimat_numbers::results::{Attestation, AttestationStatus, FieldAttestation};

use super::*;
use crate::{pictures, stand_ins::*};

const H100: Option<(&str, &str)> = Some(("cuda", "NVIDIA H100 80GB HBM3"));
/// What must come out as text wherever it stands.
const HOSTILE: &str = "</pre><script>alert(1)</script>]]> \u{1b}[31m\u{0}\u{202e}\"'&amp;";

fn of(cells: &[CellInput]) -> Comparison {
    compare(cells, &CompareSettings::default(), &Catalogue::default())
}

fn cells() -> Vec<CellInput> {
    let mut fp8 = test_job();
    fp8.precision = "fp8".into();
    let mut long = test_job();
    long.data.seq_length = 256;
    let failed = CellState::Failed {
        class: FailureClass::Oom,
        evidence: vec!["CUDA out of memory. Tried to allocate".into()],
        repeats: 1,
    };
    let mut imported = measured(
        "nvd/mega/llama/maximum_performance",
        &test_job(),
        &[0.03, 0.0301],
        H100,
    );
    imported.imported = vec!["mega.log".into()];
    vec![
        measured(
            "nvd/native/llama/maximum_performance",
            &test_job(),
            &[0.01, 0.0101, 0.0099],
            H100,
        ),
        measured(
            "nvd/tran/llama/maximum_performance",
            &test_job(),
            &[0.02, 0.0202, 0.0198],
            H100,
        ),
        measured(
            "nvd/tran/llama/maximum_performance@precision=fp8",
            &fp8,
            &[0.0101],
            H100,
        ),
        measured(
            "nvd/tran/llama/maximum_performance@seq_length=256",
            &long,
            &[0.02],
            H100,
        ),
        imported,
        cell("nvd/fsdp/llama/maximum_performance", failed),
        cell(
            "nvd/prim/llama/maximum_performance",
            CellState::Unsupported {
                reason: "Primus needs an AMD platform".into(),
            },
        ),
        measured_steps(
            "nvd/deep/llama/maximum_performance",
            &test_job(),
            &[vec![3.0]],
            H100,
        ),
    ]
}

fn page(comparison: &Comparison) -> String {
    let all = pictures(comparison).unwrap();
    let (drawn, left_out) = (all.drawn, all.left_out);
    let drawn: Vec<PagePicture> = drawn
        .into_iter()
        .map(|p| PagePicture::new(&p.file(), p.svg))
        .collect();
    let text = html(
        comparison,
        &drawn,
        &Meta {
            matrix: "m".into(),
            left_out,
        },
    )
    .unwrap();
    check(&text);
    text
}

/// Elements that have no end.
const VOID: [&str; 3] = ["meta", "link", "wbr"];

/// Every element is closed by its own end, ids are there once, and nothing reaches outside.
fn check(html: &str) {
    let (mut open, mut ids) = (Vec::new(), std::collections::BTreeSet::new());
    let mut rest = html
        .strip_prefix("<!DOCTYPE html>")
        .expect("a document type");
    while let Some(at) = rest.find('<') {
        let tag = &rest[at + 1..];
        let end = end_of(tag).unwrap_or_else(|| panic!("no end: {}", &tag[..tag.len().min(80)]));
        let (inside, after) = (&tag[..end], &tag[end + 1..]);
        rest = after;
        if let Some(name) = inside.strip_prefix('/') {
            let before = &html[..html.len() - rest.len()];
            assert_eq!(
                open.pop(),
                Some(name.trim().to_owned()),
                "…{}",
                &before[before.len().saturating_sub(300)..]
            );
            continue;
        }
        let name = inside.split([' ', '\n', '/']).next().unwrap().to_owned();
        assert!(
            name.starts_with(|c: char| c.is_ascii_lowercase()),
            "<{inside}>"
        );
        for part in inside.split(" id=\"").skip(1) {
            let id = part.split('"').next().unwrap();
            assert!(ids.insert(id.to_owned()), "the id {id} is there twice");
        }
        for reach in [
            "src=",
            "href=\"http",
            "url(",
            " onclick",
            " onload",
            " onerror",
        ] {
            assert!(!outside_quotes_or_known(inside, reach), "<{inside}>");
        }
        if name == "script" || name == "style" {
            let close = format!("</{name}>");
            rest = &rest[rest.find(&close).expect("an end") + close.len()..];
        } else if !inside.ends_with('/') && !VOID.contains(&&*name) {
            open.push(name);
        }
    }
    assert_eq!(open, Vec::<String>::new());
    assert_eq!(html.matches("<script>").count(), 1);
    let links = html
        .split("href=\"#")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap());
    for link in links {
        assert!(ids.contains(link), "nothing has the id {link}");
    }
    let seen = |c: char| {
        c.is_control() && c != '\n' && c != '\t' || ('\u{202a}'..='\u{202e}').contains(&c)
    };
    assert!(!html.contains(seen));
}

fn outside_quotes_or_known(inside: &str, reach: &str) -> bool {
    // Values are escaped, so an attribute's name is outside of quotes: every second part.
    inside
        .split('"')
        .step_by(2)
        .any(|part| part.contains(reach))
        || (reach.ends_with("http") && inside.contains(reach))
}

/// Where a tag ends: at the first `>` that is not in quotes.
fn end_of(tag: &str) -> Option<usize> {
    let mut quoted = false;
    tag.char_indices().find_map(|(at, ch)| {
        quoted ^= ch == '"';
        (ch == '>' && !quoted).then_some(at)
    })
}

#[test]
fn same_comparison_same_bytes_and_everything_is_told() {
    let comparison = of(&cells());
    let text = page(&comparison);
    assert_eq!(text, page(&comparison));
    for cell in cells() {
        assert!(text.contains(&cell.cell), "{}", cell.cell);
    }
    for words in [
        " trains llama 2.0",
        "<small>slower",
        "No picture “Scaling”: ",
        "one repeat gives no interval",
        "precision: fp8, not bf16",
        "mega (imported)",
        "Imported, not measured by tprimat: mega.log",
        "Primus needs an AMD platform",
        "CUDA out of memory",
        "within the declared warm-up of 1 step",
    ] {
        assert!(text.contains(words), "{words}");
    }
    for headline in crate::headline::headlines(&comparison) {
        assert!(text.contains(&escaped(&headline.text)), "{}", headline.text);
    }
    for note in &comparison.notes {
        // As a sentence of its own it begins with a capital.
        let words: String = note.reason.text.clone().chars().skip(1).collect();
        assert!(text.contains(&escaped(&words)), "{note:?}");
    }
}

#[test]
fn groups_have_tables_of_their_own() {
    let comparison = of(&cells());
    assert_eq!(comparison.groups.len(), 2);
    let text = page(&comparison);
    let sections: Vec<&str> = text.split("<section id=\"group-").skip(1).collect();
    assert_eq!(sections.len(), 2);
    let table = |section: &str| section.split("</table>").next().unwrap().to_owned();
    for (section, at) in sections.iter().zip(0..) {
        for row in &comparison.rows {
            let is_told = table(section).contains(&format!(" title=\"{}\">", row.cell));
            assert_eq!(is_told, row.group == at, "{} in {at}", row.cell);
        }
    }
    assert!(text.contains("Do not compare figures across tables"));
    assert!(text.contains("seq_length: 256, not 128"));
    let rates = |section: &str| -> Vec<f64> {
        let table = table(section);
        let cells = table
            .split("data-t=\"tokens/s/GPU (95 % CI)\" data-v=\"")
            .skip(1);
        cells
            .map(|cell| cell.split('"').next().unwrap().parse().unwrap())
            .collect()
    };
    for section in &sections {
        let rates = rates(section);
        assert!(
            !rates.is_empty() && rates.is_sorted_by(|a, b| a >= b),
            "the fastest first: {rates:?}"
        );
    }
    let nav = text.split("</nav>").next().unwrap();
    assert!(
        nav.contains("#group-1\">llama, bf16/fp8, sequence 128, "),
        "{nav}"
    );
    assert!(
        nav.contains("#group-2\">llama, bf16, sequence 256, "),
        "{nav}"
    );
}

#[test]
fn words_from_outside_stay_words() {
    let mut hostile = cells();
    hostile[1].cell = format!("nvd/{HOSTILE}/llama/maximum_performance");
    hostile[6].cell = format!("nvd/prim{HOSTILE}");
    hostile[0].environment.variables = [(HOSTILE.to_owned(), HOSTILE.to_owned())].into();
    let CellState::Ok { summary } = &mut hostile[0].state else {
        panic!()
    };
    summary.versions = [("torch".to_owned(), HOSTILE.to_owned())].into();
    summary.notes.push(tprimat_numbers::figures::Note::new(
        tprimat_numbers::figures::NoteKind::Remark,
        "told",
        HOSTILE,
    ));
    let repeat = &mut summary.repeats[1];
    repeat.host = HOSTILE.to_owned();
    repeat.log_tail = vec![HOSTILE.to_owned(); 3];
    repeat.status = tprimat_numbers::figures::RepeatStatus::Failed {
        class: FailureClass::Unknown,
        evidence: vec![HOSTILE.into()],
    };
    let text = html(
        &of(&hostile),
        &[],
        &Meta {
            matrix: HOSTILE.into(),
            ..Meta::default()
        },
    )
    .unwrap();
    check(&text);
    assert!(text.contains(
        "&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;]]&gt; \u{fffd}[31m\u{fffd}\u{fffd}&quot;&#39;&amp;amp;"
    ));
    page(&of(&hostile));
}

#[test]
fn a_missing_figure_says_why_beside_it_and_in_the_details() {
    let mut cells = cells();
    for cell in &mut cells {
        if let CellState::Ok { summary } = &mut cell.state {
            summary.loss_at_end = None;
        }
    }
    let mut comparison = of(&cells);
    let metric = |figure| Metric {
        name: "tokens_per_dollar".into(),
        title: "tokens/USD".into(),
        unit: "tokens/USD".into(),
        higher_is_better: Some(true),
        reference: None,
        figure,
    };
    comparison.rows[0].metrics.0 = vec![metric(Figure::Ok {
        value: 1234.5,
        basis: "2.5 USD a GPU-hour".into(),
    })];
    comparison.rows[1].metrics.0 = vec![metric(Figure::Absent {
        reason: "no price is known".into(),
    })];
    comparison.rows[2].metrics.0 = vec![metric(Figure::Error {
        reason: "the price is negative".into(),
    })];
    let text = page(&comparison);
    assert!(text.contains("<th role=\"columnheader\" scope=\"col\" class=\"n\">tokens/USD</th>"));
    assert!(
        text.contains("data-v=\"1234.5\"><span>1,234</span>"),
        "the value"
    );
    assert!(text.contains("2.5 USD a GPU-hour"));
    for reason in [
        "no price is known",
        "the price is negative",
        "logs no loss at its last step",
    ] {
        assert!(
            text.contains(&format!("role=\"tooltip\">{reason}"))
                || text.contains(&format!("{reason}</span></span>")),
            "{reason}"
        );
        assert!(
            text.contains(&format!("<td>{reason}</td>"))
                || text.contains(&format!("{reason}</td>")),
            "{reason}"
        );
    }
}

#[test]
fn a_page_of_many_cells_shows_the_first_and_says_so() {
    let mut comparison = of(&cells());
    let row = comparison.rows[0].clone();
    let many = super::MOST + 700;
    comparison.rows = (0..many)
        .map(|at| Row {
            cell: format!("{}@n={at}", row.cell),
            ..row.clone()
        })
        .collect();
    comparison.groups.truncate(1);
    comparison.groups[0].baseline = comparison.rows[0].cell.clone();
    (
        comparison.speedups,
        comparison.differences,
        comparison.notes,
    ) = Default::default();
    let text = page(&comparison);
    let said = format!(
        "This page shows the first {} of {many} cells with figures; compare.json has all of them.",
        super::MOST
    );
    assert!(text.contains(&said));
    assert_eq!(
        text.matches("<details class=\"cell\"").count(),
        super::MOST + comparison.absent.len()
    );
    assert!(text.len() < 30 << 20, "{} bytes", text.len());
}

#[test]
fn a_contradiction_is_shown_field_by_field_although_there_is_no_figure() {
    let mut cells = cells();
    let CellState::Ok { summary } = &mut cells[7].state else {
        panic!()
    };
    summary.attested = Some(Attestation {
        status: AttestationStatus::Contradicted,
        fields: vec![FieldAttestation {
            field: "seq_length".into(),
            declared: Some(2048.into()),
            effective: Some(8192.into()),
            status: AttestationStatus::Contradicted,
            arithmetic: Some("65536 ÷ 8".into()),
        }],
    });
    summary.repeats[0].status = tprimat_numbers::figures::RepeatStatus::Contradicted {
        fields: vec!["seq_length".into()],
    };
    let text = page(&of(&cells));
    for words in [
        "<td>2048</td><td>8192</td>",
        "badge contradicted\">contradicted</span>",
        "<small>65536 ÷ 8</small>",
    ] {
        assert!(text.contains(words), "{words}");
    }
}

#[test]
fn a_suspect_repeat_is_told_with_its_reason() {
    let mut comparison = of(&cells());
    let reason = "its GPU gpu-0 was also used by process 7 (<b>)".to_owned();
    comparison.rows[1].repeats[0].status =
        tprimat_numbers::figures::RepeatStatus::Suspect { reason };
    comparison.rows[1].uncounted.suspect = 1;
    comparison.uncounted.suspect = 1;
    let text = page(&comparison);
    for words in [
        "badge suspect\">suspect</span>",
        "used by process 7 (&lt;b&gt;)</small>",
        "1 suspect run",
        ">1 suspect<",
    ] {
        assert!(text.contains(words), "{words}");
    }
}

#[test]
fn a_cut_and_a_dangerous_variable_are_told() {
    let mut comparison = of(&cells());
    comparison.rows[1].repeats[0].steady.as_mut().unwrap().cut = Some(Cut {
        first_step: 12,
        dropped_steps: 10,
        method: "cusum".into(),
        not_assessed: None,
        declared_tokens_per_second_per_gpu: 1000.0,
        level_shift: None,
    });
    comparison.environment = vec![EnvironmentDifference {
        cell_a: "nvd/tran/llama/maximum_performance".into(),
        cell_b: "nvd/native/llama/maximum_performance".into(),
        kind: tprimat_numbers::figures::EnvironmentKind::Variable,
        name: "CUDA_LAUNCH_BLOCKING".into(),
        a: Some("1".into()),
        b: None,
        follows: None,
        dangerous: Some("every kernel waits for the one before".into()),
    }];
    let text = page(&comparison);
    assert!(text.contains("from step 12; method: cusum; 10 dropped after the declared warm-up"));
    assert!(text.contains("1,000 after the declared warm-up"));
    assert!(
        text.contains("every kernel waits for the one before") && text.contains("<td>not set</td>")
    );
}

#[test]
fn what_guard_statistics_and_telemetry_say_is_on_the_page() {
    let mut comparison = of(&cells());
    let (base, row) = (comparison.rows[0].loss_group, &mut comparison.rows[1]);
    row.loss_group = base + 1;
    let mut seed = row.contract.0[0].clone();
    (seed.field, seed.tier, seed.value) = (
        "seed".into(),
        tprimat_numbers::results::Tier::Convergence,
        7.into(),
    );
    row.contract.0.retain(|f| f.field != "seed");
    row.contract.0.push(seed);
    row.warnings = vec!["CUDA_LAUNCH_BLOCKING=1: the host waits".into()];
    row.repeats_added_later = true;
    row.tokens_per_second_per_gpu.unit = tprimat_numbers::figures::Unit::Host;
    let telemetry = serde_json::json!({"source": "nvml", "devices": 8, "seconds": 9.0, "energy_absent": {"code": "told", "severity": "detail", "text": "no counter & no power"},
        "throttled": ["sw_power_cap"], "throttled_share": {"sw_power_cap": 0.25}});
    row.repeats[0].telemetry = Some(serde_json::from_value(telemetry).unwrap());
    row.repeats[1].telemetry_absent = Some("no driver answers".into());
    let cell = row.cell.clone();
    let speedup = comparison
        .speedups
        .iter_mut()
        .find(|s| s.a == cell)
        .unwrap();
    speedup.interval.as_mut().unwrap().confidence = 0.975;
    comparison.environment = vec![EnvironmentDifference {
        cell_a: cell,
        cell_b: speedup.b.clone(),
        kind: tprimat_numbers::figures::EnvironmentKind::Fact,
        name: "driver".into(),
        a: Some("1".into()),
        b: Some("2".into()),
        follows: Some("platform".into()),
        dangerous: None,
    }];
    let text = page(&comparison);
    for words in [
        "loss not comparable: seed: 7, not 1",
        "CUDA_LAUNCH_BLOCKING=1: the host waits</span>",
        "repeats added later</span>",
        "3 hosts count as one each",
        "Unit of replication: 3 hosts.",
        "sw_power_cap in 25.0 % of the samples",
        "no energy: no counter &amp; no power",
        "<small>no driver answers</small>",
        "<small>95 % CI ",
        "follows from another platform",
        "Measured: ",
    ] {
        assert!(text.contains(words), "{words}");
    }
}

#[test]
fn a_matrix_that_fails_as_a_whole_still_fits() {
    let line = "x".repeat(400);
    let failed = |i: usize| {
        let mut cell = measured_steps(
            &format!("nvd/tran/llama/s{i}"),
            &test_job(),
            &vec![vec![3.0]; 5],
            H100,
        );
        let CellState::Ok { summary } = &mut cell.state else {
            panic!()
        };
        summary
            .repeats
            .iter_mut()
            .for_each(|r| r.log_tail = vec![line.clone(); 40]);
        cell
    };
    let cells: Vec<CellInput> = (0..60).map(failed).collect();
    let text = html(&of(&cells), &[], &Meta::default()).unwrap();
    check(&text);
    assert!(text.len() < 3 << 20, "{} bytes", text.len());
    assert!(text.contains("without 35 for which there was no room"));
}

/// What of a log got past the escaping can neither move the page's links nor send anything off.
#[test]
fn a_page_may_not_be_rebased_and_sends_no_form() {
    let html = page(&of(&cells()));
    let policy = html.split("Content-Security-Policy").nth(1).unwrap();
    let policy = policy.split('>').next().unwrap();
    for words in [
        "default-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
    ] {
        assert!(policy.contains(words), "{words}: {policy}");
    }
}

/// Wide tables scroll in a box of their own, and the page does not cut them.
#[test]
fn wide_tables_scroll() {
    let html = page(&of(&cells()));
    let scrolls = html.matches("class=\"scroll\"").count() + html.matches("class=scroll").count();
    assert!(scrolls > 0, "no table can scroll");
    let style = include_str!("style.css");
    let rule = style
        .split(".scroll")
        .nth(1)
        .unwrap()
        .split('}')
        .next()
        .unwrap();
    assert!(rule.contains("overflow-x: auto; max-width: 100%"), "{rule}");
}

#[test]
fn nothing_at_all_is_still_a_page() {
    assert!(page(&of(&[])).contains("No cell has figures."));
    let one = page(&of(&[measured(
        "cpu/native/tiny/single",
        &test_job(),
        &[0.25],
        None,
    )]));
    assert!(one.contains("<small>one repeat</small>"));
}

#[test]
fn whatever_may_be_absent_may_be_absent() {
    let sample = crate::plot::sample::Sample {
        cells: 9,
        groups: 2,
        repeats: 3,
        steps: 9,
        scale: 1.0,
        troubled: true,
    };
    let mut comparison: Comparison = serde_json::from_value(sample.json()).unwrap();
    assert!(page(&comparison).contains("2 workloads"));
    for repeat in comparison.rows.iter_mut().flat_map(|r| &mut r.repeats) {
        (
            repeat.steady,
            repeat.loss_at_end,
            repeat.last_step,
            repeat.started_at,
        ) = (None, None, None, None);
        repeat.host.clear();
    }
    for row in &mut comparison.rows {
        (row.memory, row.device, row.attested) = (Vec::new(), None, None);
        (row.step_time.cv, row.tokens_per_second_per_gpu.ci95) = (None, None);
        row.tokens_per_second_per_gpu.value = f64::NAN;
    }
    page(&comparison);
}
