use super::*;
use crate::{hardware::in_title, stand_ins::*};
use tprimat_numbers::figures::{Catalogue, CompareSettings, compare};

fn page() -> Page {
    Page {
        width: 100,
        ..Page::file()
    }
}

fn shown(cells: &[tprimat_numbers::figures::CellInput]) -> String {
    let comparison = compare(cells, &CompareSettings::default(), &Catalogue::default());
    let commands = Commands {
        details: "tprimat compare --details".into(),
        build: "tprimat build".into(),
        can_run: Some(true),
        plan: "tprimat plan".into(),
    };
    glance(&comparison, false, &commands, &page())
}

#[test]
fn one_sentence_one_table_and_what_would_change_the_readers_mind() {
    let mut compiled = test_job();
    compiled.compile = true;
    let cells = [
        measured(
            "nvd/native/llama/single@compile=false",
            &test_job(),
            &[1.0, 1.01, 0.99],
            None,
        ),
        measured(
            "nvd/tran/llama/single@compile=false",
            &test_job(),
            &[1.2, 1.21, 1.19],
            None,
        ),
        measured(
            "nvd/titan/llama/single@compile=true",
            &compiled,
            &[0.88, 0.881, 0.879],
            None,
        ),
    ];
    insta::assert_snapshot!(shown(&cells));
}

#[test]
fn a_command_that_is_named_is_of_the_cells_that_are_shown() {
    let cells = [
        measured(
            "nvd/native/llama/single",
            &test_job(),
            &[1.0, 1.01, 0.99],
            None,
        ),
        measured(
            "nvd/tran/llama/single",
            &test_job(),
            &[1.2, 1.21, 1.19],
            None,
        ),
    ];
    let mut comparison = compare(&cells, &CompareSettings::default(), &Catalogue::default());
    comparison.speedups[0].apart_seconds = Some(90_000.0);
    let commands = Commands {
        details: "tprimat compare m --details".into(),
        build: "tprimat build m".into(),
        can_run: Some(true),
        plan: "tprimat plan m".into(),
    };
    let said = glance(
        &comparison,
        false,
        &commands,
        &Page {
            width: 1000,
            ..Page::file()
        },
    );
    assert!(
        said.contains("`tprimat build m --force=measured --only nvd/tran/llama/single --only nvd/native/llama/single`"),
        "{said}"
    );
    assert!(
        said.ends_with("figure and note: `tprimat compare m --details`\n"),
        "{said}"
    );
}

/// Two repeats have no verdict, and their interval is not among the corrected ones.
#[test]
fn an_interval_without_a_verdict_is_not_called_a_corrected_one() {
    let one = |name: &str, times: &[f64]| {
        measured(
            &format!("nvd/{name}/llama/single"),
            &test_job(),
            times,
            None,
        )
    };
    let cells = [
        one("native", &[1.0, 1.01, 0.99]),
        one("tran", &[1.2, 1.21, 1.19]),
        one("titan", &[0.88, 0.881, 0.879]),
        one("bridge", &[0.9, 0.901]),
    ];
    let all = compare(&cells, &CompareSettings::default(), &Catalogue::default());
    let page = Page {
        width: 1000,
        ..Page::file()
    };
    let html = crate::html(&all, &[], &crate::Meta::default()).unwrap();
    for said in [shown(&cells), crate::table(&all, &page), html] {
        assert!(said.contains("95 % CI, Holm"), "{said}");
        let own = said.matches("1.08–1.14").count();
        assert!(
            own > 0 && said.matches("95 % CI 1.08–1.14").count() == own,
            "{said}"
        );
    }
}

#[test]
fn a_title_names_the_devices_that_are_stated() {
    let said = |devices: &[Option<&str>]| {
        let name = |at: usize| format!("nvd/f{at}/llama/single");
        let cells: Vec<_> = (0..devices.len())
            .map(|at| measured(&name(at), &test_job(), &[1.0], None))
            .collect();
        let mut all = compare(&cells, &CompareSettings::default(), &Catalogue::default());
        for (row, device) in all.rows.iter_mut().zip(devices) {
            row.device = device.map(str::to_owned);
        }
        in_title(&all.rows.iter().collect::<Vec<_>>())
    };
    let h200 = Some("NVIDIA H200");
    assert_eq!(said(&[h200, h200]), "; NVIDIA H200");
    assert_eq!(said(&[h200, None]), "; NVIDIA H200, not stated");
    assert_eq!(said(&[None, None]), "");
}

/// The sweep's own sentence says it; below the table it would be read again as something else.
#[test]
fn a_sweep_says_once_that_its_points_are_different_workloads() {
    let cells = [64_u64, 128, 256].map(|length| {
        let mut job = test_job();
        job.data.seq_length = length;
        let name = format!("nvd/native/llama/single@seq_length={length}");
        let mut cell = measured(&name, &job, &[1.0, 1.01, 0.99], None);
        cell.axes = [("seq_length".to_owned(), length.to_string())].into();
        cell
    });
    let said = shown(&cells);
    assert!(said.contains("Points are different workloads"), "{said}");
    assert!(
        !said.contains("Cells of different workloads are not compared"),
        "{said}"
    );
}
