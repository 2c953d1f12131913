//! The comment on a pull request: its length, and which notes stand in it.

use super::*;

/// Cells that differ in nothing but their names, with names of `length` letters.
fn many(cells: usize, length: usize) -> Comparison {
    let name = |i: usize| format!("nvd/{}{i}/llama/maximum_performance", "f".repeat(length));
    let cells: Vec<_> = (0..cells)
        .map(|i| measured(&name(i), &test_job(), &[0.01, 0.0101, 0.0099], H100))
        .collect();
    let mut all = compare(&cells, &CompareSettings::default(), &Catalogue::default());
    let like = rich(&[]).rows[0].metrics.clone();
    all.rows.iter_mut().for_each(|r| r.metrics = like.clone());
    all
}

#[test]
fn a_comment_is_never_too_long_and_says_what_is_missing() {
    let all = markdown(&many(150, 250));
    assert!(
        all.len() < 65_536 && all.contains("left out: "),
        "{}",
        &all[all.len() - 300..]
    );
    let opened = all.matches("<details>").count();
    assert_eq!(opened, all.matches("</details>").count());
    let mut loud = many(3, 5);
    let note = |i: usize| {
        Note::new(
            NoteKind::Remark,
            "told",
            format!("note {i} {}", "x".repeat(i * 40)),
        )
    };
    loud.notes = (0..500).map(note).collect();
    let loud = markdown(&loud);
    assert!(
        loud.len() < 65_536 && loud.contains("notes."),
        "{}",
        &loud[loud.len() - 300..]
    );
    assert!(!markdown(&many(40, 5)).contains("left out"));
}

/// By its kind, whatever its words are.
#[test]
fn the_weightiest_note_is_told_first_and_none_but_remarks_are_left_out() {
    let kinds = [
        NoteKind::Method,
        NoteKind::Remark,
        NoteKind::Failed,
        NoteKind::Contradicted,
        NoteKind::Dangerous,
    ];
    let mut all = many(3, 5);
    let words = "not compared with, contradict, impossible, failed, MFU:";
    all.notes = kinds
        .iter()
        .zip(0..)
        .map(|(kind, i)| Note::new(*kind, "told", format!("note {i} {words}")))
        .collect();
    all.notes
        .extend((5..40).map(|i| Note::new(NoteKind::Remark, "told", format!("note {i}"))));
    all.rows.iter_mut().for_each(|row| row.metrics.0.clear());
    let text = table(
        &all,
        &Page {
            most_notes: Some(2),
            ..page(200)
        },
    );
    let at = |i: usize| {
        text.find(&format!("- Note {i} "))
            .unwrap_or_else(|| panic!("{i}: {text}"))
    };
    let order = [3, 4, 2, 1, 0].map(at);
    assert!(order.is_sorted(), "{text}");
    assert!(
        text.contains("more remarks: --json has all.") && !text.contains("Note 39"),
        "{text}"
    );
}

#[test]
fn a_note_of_several_cells_is_one_sentence_and_each_has_it_in_its_details() {
    let all = many(3, 5);
    let names: Vec<&str> = all.rows.iter().map(|row| row.cell.as_str()).collect();
    let text = table(&all, &page(1000));
    assert_eq!(
        text.matches("the log does not confirm ").count(),
        1,
        "{text}"
    );
    for name in names {
        let shown = cell_text(&all, name, crate::advice::in_general, &page(1000)).unwrap();
        assert_eq!(shown.matches("the job asked for it.").count(), 1, "{shown}");
    }
}

#[test]
fn forty_cells_have_one_line_for_what_holds_of_all() {
    let text = table(&many(40, 5), &page(160));
    assert!(
        text.contains("all 40 cells: the log does not confirm architecture"),
        "{text}"
    );
    assert!(
        text.lines().filter(|line| line.starts_with("- ")).count() < 10,
        "{text}"
    );
}
