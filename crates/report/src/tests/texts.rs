//! What holds of every text, table, page and file: widths, numbers, colours, markup, intervals.

use super::*;

/// Every text made of a comparison.
fn texts(all: &Comparison) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    for width in [1, 60, 80, 100, 140, 200] {
        texts.insert(format!("table {width}"), table(all, &page(width)));
        for row in &all.rows {
            texts.insert(
                format!("{} {width}", row.cell),
                cell_text(all, &row.cell, crate::advice::in_general, &page(width)).unwrap(),
            );
        }
    }
    texts.insert("markdown".into(), markdown(all));
    texts.insert("csv".into(), csv(all));
    texts.insert("repeats".into(), csv_repeats(all));
    texts.insert(
        "headlines".into(),
        headlines(all).into_iter().map(|h| h.text + "\n").collect(),
    );
    texts
}

#[test]
fn no_line_is_wider_than_the_page() {
    for width in [60, 80, 100, 140, 200] {
        for (name, text) in texts(&rich(&[]))
            .into_iter()
            .filter(|(name, _)| name.ends_with(&format!(" {width}")))
        {
            let wide = text.lines().find(|line| line.chars().count() > width);
            assert!(wide.is_none(), "{name}: {wide:?}");
        }
    }
}

#[test]
fn cells_of_two_workloads_stand_in_no_table_without_across() {
    // A line of a table that has both, or a ratio between them, would put them side by side.
    let (one, other) = (
        "nvd/native/llama/maximum_performance",
        "nvd/tran/llama/maximum_performance@seq_length=256",
    );
    for (name, text) in texts(&rich(&[])) {
        let both = text
            .lines()
            .filter(|line| line.contains(one) && line.contains(other));
        let wrong: Vec<_> = both
            .filter(|l| {
                !(l.contains("not be compared")
                    || l.contains("not compared with")
                    || l.contains("cells"))
            })
            .collect();
        let without_notes: Vec<_> = wrong.into_iter().filter(|l| l.contains('×')).collect();
        assert!(without_notes.is_empty(), "{name}: {without_notes:?}");
    }
    let apart = rich(&[]);
    assert!(apart.groups.len() == 2 && markdown(&apart).matches("\n#### ").count() == 2);
    for (name, text) in texts(&rich(&["seq_length"])) {
        let is_of_pair =
            name.starts_with("table") || ["markdown", "csv", "headlines"].contains(&name.as_str());
        let words: String = text
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .replace("&#95;", "_");
        let tight = words.replace([' ', '│'], "");
        assert!(
            !is_of_pair
                || (tight.contains("acrossseq_length:256,not128")
                    || tight.contains("Notthesameworkload:seq_length(")),
            "{name}:\n{text}"
        );
    }
}

#[test]
fn what_is_no_number_is_never_printed() {
    let mut all = rich(&[]);
    for (i, row) in all.rows.iter_mut().enumerate() {
        let bad = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][i % 3];
        row.tokens_per_second_per_gpu.value = bad;
        row.tokens_per_second_per_gpu.ci95 = Some([bad, 1.0]);
        row.tokens_per_second = Some(bad);
        (
            row.step_time.mean_seconds,
            row.step_time.cv,
            row.loss_at_end,
        ) = (bad, Some(bad), Some(bad));
        row.metrics
            .0
            .iter_mut()
            .for_each(|m| m.figure = figure(bad));
        for steady in row.repeats.iter_mut().filter_map(|r| r.steady.as_mut()) {
            steady.tokens_per_second_per_gpu = bad;
        }
    }
    for speedup in &mut all.speedups {
        speedup.ratio = f64::NAN;
        speedup.interval = Some(RatioInterval {
            low: f64::NAN,
            high: f64::INFINITY,
            confidence: 0.95,
        });
    }
    for (name, text) in texts(&all) {
        let has = |word: &str| {
            text.split(|c: char| !c.is_alphanumeric())
                .any(|w| w.eq_ignore_ascii_case(word))
        };
        assert!(
            !has("nan") && !has("inf") && !has("infinity"),
            "{name}:\n{text}"
        );
    }
}

#[test]
fn colour_repeats_what_words_say_and_is_only_where_asked_for() {
    let all = rich(&[]);
    let strip = |text: &str| {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('\u{1b}') {
            out.push_str(&rest[..at]);
            rest = &rest[at..][rest[at..].find('m').unwrap() + 1..];
        }
        out + rest
    };
    for width in [60, 80, 120, 200] {
        let plain = table(&all, &page(width));
        let colour = table(
            &all,
            &Page {
                paint: Paint::Colour,
                ..page(width)
            },
        );
        assert!(
            !plain.contains('\u{1b}')
                && colour.contains("\u{1b}[32m")
                && colour.contains("\u{1b}[1;31m"),
            "{colour}"
        );
        assert_eq!(strip(&colour), plain, "{width}");
        assert!(
            plain.contains("faster") && plain.contains("slower") && plain.contains("contradicted")
        );
    }
}

#[test]
fn names_and_logs_are_no_markup_and_no_formula() {
    let mut all = rich(&[]);
    all.absent[0].reason =
        "=cmd|' /C calc'!A0 | `x` <img src=x> @everyone #12 https://evil.example [a](b) \u{202e}"
            .into();
    all.notes
        .push(Note::new(NoteKind::Remark, "told", "-1+1 @team **bold**"));
    let text = markdown(&all);
    for bad in [
        "<img",
        " @everyone",
        " #12",
        "https://",
        "[a](b)",
        "**bold**",
        "\u{202e}",
        " @team",
    ] {
        assert!(!text.contains(bad), "{bad}:\n{text}");
    }
    // A pipe in a reason makes no column.
    let mut of_reason = text.lines().filter(|line| line.contains("&lt;img"));
    assert!(of_reason.all(|line| !line.contains('|')), "{text}");
    let file = csv(&all);
    assert!(file.contains("'=cmd|"), "{file}");
    let mut reader = ::csv::Reader::from_reader(file.as_bytes());
    assert_eq!(
        reader
            .records()
            .map(|r| r.unwrap().len())
            .collect::<std::collections::BTreeSet<_>>()
            .len(),
        1
    );
    assert!(csv_repeats(&all).lines().count() > 10);
}

/// One level for the reader, and by the same figures, everywhere; files have the exact confidence,
/// and a note says once that intervals are widened.
#[test]
fn every_text_has_the_interval_that_goes_with_the_verdict() {
    let all = rich(&[]);
    let tested: Vec<_> = all
        .speedups
        .iter()
        .filter(|s| s.significant.is_some())
        .collect();
    assert!(
        tested.iter().any(|s| s.interval.unwrap().confidence > 0.95),
        "{tested:?}"
    );
    let csv = csv(&all);
    let mut reader = ::csv::Reader::from_reader(csv.as_bytes());
    let at = |name: &str| {
        csv.lines()
            .next()
            .unwrap()
            .split(',')
            .position(|column| column == name)
            .unwrap()
    };
    let [low, confidence] = ["speedup_interval_low", "speedup_interval_confidence"].map(at);
    let records: Vec<_> = reader.records().map(|r| r.unwrap()).collect();
    for speedup in tested {
        let ends = interval(speedup, "95 % CI, Holm").unwrap();
        assert!(!ends.contains("CI"), "the head of the column says it");
        assert!(
            markdown(&all).contains(&ends) && table(&all, &page(400)).contains(&ends),
            "{ends}"
        );
        let record = records.iter().find(|r| r[0] == *speedup.a).unwrap();
        let of = speedup.interval.unwrap();
        assert_eq!(
            [&record[low], &record[confidence]],
            [of.low.to_string(), of.confidence.to_string()].each_ref()
        );
    }
    for text in [markdown(&all), table(&all, &page(400))] {
        let said = text
            .matches("pairs of cells that are compared together raise a false alarm in at most 5 % of tables")
            .count();
        assert!(
            said == 1 && !text.contains("98.") && !text.contains("97.5 %"),
            "{text}"
        );
    }
}

/// The same sentences in the same order before the figures of a group, what is refused before
/// everything.
#[test]
fn terminal_comment_and_page_begin_with_the_same_sentences() {
    let all = rich(&[]);
    let told = headlines(&all);
    let of_group: Vec<_> = told.iter().filter(|h| h.group == Some(0)).collect();
    let (refused, _) = headline::refused(&told);
    assert!(refused.len() == 1 && of_group.len() > 3, "{told:?}");
    let page_of = html(&all, &[], &Meta::default()).unwrap();
    let plain = |text: String| {
        text.replace("&#95;", "_")
            .replace("&#39;", "'")
            .replace("&#96;", "`")
    };
    for text in [table(&all, &page(1000)), plain(markdown(&all)), page_of] {
        let figures = text.find("10.00 ms").unwrap();
        let first = refused
            .iter()
            .copied()
            .chain(of_group.iter().copied().take(crate::document::LEADING));
        let at: Vec<usize> = first
            .map(|h| {
                text.find(&*h.text)
                    .unwrap_or_else(|| panic!("{h:?}: {text}"))
            })
            .collect();
        assert!(
            at.len() == 4 && at.is_sorted() && at[3] < figures,
            "{at:?} {figures}: {text}"
        );
    }
    let more = format!("And {} more, in the table.", of_group.len() - 3);
    for text in [table(&all, &page(1000)), markdown(&all)] {
        let at = text.find(&more).unwrap_or_else(|| panic!("{more}: {text}"));
        assert!(
            at < text.find("10.00 ms").unwrap() && text.matches("in the table.").count() == 1,
            "{text}"
        );
    }
}

#[test]
fn a_loss_of_other_settings_is_marked_beside_the_baselines() {
    let mut all = rich(&[]);
    for (row, loss) in all.rows.iter_mut().zip([2.5, 2.25, 2.125]) {
        (row.loss_at_end, row.loss_group) = (Some(loss), 0);
    }
    let marked = |all: &Comparison| {
        [table(all, &page(200)), markdown(all)].map(|text| text.matches("(not comparable)").count())
    };
    assert_eq!(marked(&all), [0, 0]);
    all.rows[1].loss_group = 1;
    assert_eq!(marked(&all), [1, 1]);
    assert!(
        markdown(&all).contains("2.250 (not comparable)"),
        "{}",
        markdown(&all)
    );
    // What is not there needs no mark.
    all.rows[1].loss_at_end = None;
    assert_eq!(marked(&all), [0, 0]);
}

#[test]
fn repeats_that_do_not_count_stand_beside_those_that_do() {
    let cells = [measured_steps(
        "cpu/native/llama/maximum_performance",
        &test_job(),
        &[vec![3.0, 1.0], vec![3.0]],
        None,
    )];
    let text = table(
        &compare(&cells, &CompareSettings::default(), &Catalogue::default()),
        &page(200),
    );
    assert!(text.contains("1/3, 1 unmeasured"), "{text}");
    assert!(
        text.contains("repeat 2 is not counted: the only timed step is within"),
        "{text}"
    );
}
