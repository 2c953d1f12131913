mod layout;

use tprimat_numbers::figures::{Comparison, Figure, Metric, RepeatStatus, UncountedRepeats};

use super::{sample::Sample, style::colour_of, *};

const PLAIN: Sample = Sample {
    cells: 8,
    groups: 1,
    repeats: 3,
    steps: 60,
    scale: 1.0,
    troubled: false,
};

fn comparison(sample: Sample) -> Comparison {
    serde_json::from_value(sample.json()).unwrap()
}

/// What is wrong with any picture of a comparison.
fn faults(comparison: &Comparison) -> Vec<String> {
    let shown = Shown::of(comparison);
    let of = |(name, _, draw): (&str, &str, Draw)| {
        let svg = draw(&shown).map(|canvas| canvas.bounded().svg().unwrap());
        let faults = svg
            .map(|svg| layout::layout_faults(&svg))
            .unwrap_or_default();
        let named = faults.into_iter().map(|fault| format!("{name}: {fault}"));
        named.collect::<Vec<_>>()
    };
    PLOTS.into_iter().flat_map(of).collect()
}

fn named<'a>(pictures: &'a Pictures, name: &str) -> &'a Picture {
    pictures
        .drawn
        .iter()
        .find(|picture| picture.name == name)
        .unwrap()
}

/// All words, in the order in which they are drawn.
fn svg_words(svg: &str) -> String {
    let svg = roxmltree::Document::parse(svg).unwrap();
    let words = svg.descendants().filter(|n| n.has_tag_name("text"));
    let words: Vec<&str> = words.filter_map(|n| Some(n.text()?.trim())).collect();
    words.join(" ")
}

/// The short name of each row.
fn names_of(comparison: &Comparison) -> Vec<String> {
    let mut names = vec![String::new(); comparison.rows.len()];
    for group in 0..comparison.groups.len() {
        let rows = comparison.rows.iter().enumerate();
        let rows: Vec<_> = rows.filter(|(_, row)| row.group == group).collect();
        let of: Vec<_> = rows.iter().map(|(_, row)| *row).collect();
        for ((index, _), name) in rows.iter().zip(short_names(&of)) {
            names[*index] = name;
        }
    }
    names
}

#[test]
fn every_cell_is_named_with_what_it_does_differently_and_every_absent_one_with_its_reason() {
    let comparison = comparison(Sample {
        cells: 9,
        troubled: true,
        ..PLAIN
    });
    let pictures = pictures(&comparison).unwrap();
    for picture in pictures.drawn.iter().filter(|p| p.name != "scaling") {
        let svg = roxmltree::Document::parse(&picture.svg).unwrap();
        let words: String = svg
            .descendants()
            .filter_map(|node| node.text())
            .collect::<Vec<_>>()
            .join("\n");
        for (row, name) in comparison.rows.iter().zip(names_of(&comparison)) {
            assert!(
                words.contains(name.get(..12).unwrap_or(&name)),
                "{}: {}",
                picture.name,
                row.cell
            );
            let is_marked = words.contains("(imported)");
            assert!(is_marked, "{}", picture.name);
        }
        let labels = words.replace('\n', " ");
        assert!(
            labels.contains("across global_batch_size:"),
            "{}: {labels}",
            picture.name
        );
        if ["compare", "throughput"].contains(&picture.name) {
            for cell in &comparison.absent {
                assert!(
                    words.contains(&format!("{}: {}", cell.cell, cell.state)),
                    "{}: {}",
                    picture.name,
                    cell.cell
                );
            }
        } else {
            assert!(
                words.contains("3 cells without figures are not shown"),
                "{}",
                picture.name
            );
        }
    }
}

#[test]
fn what_shows_nothing_is_left_out_with_its_reason() {
    let mut comparison = comparison(Sample { cells: 2, ..PLAIN });
    let left_out = |c: &Comparison| {
        let all = pictures(c).unwrap();
        assert_eq!(all.drawn.len() + all.left_out.len(), PLOTS.len());
        all.left_out
            .into_iter()
            .map(|l| (l.name, l.reason))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        left_out(&comparison),
        [
            (
                "sweep",
                "no axis of the matrix has three numbers or more".to_owned()
            ),
            ("scaling", "no cell has `scaling_efficiency`".to_owned())
        ]
    );
    for row in &mut comparison.rows {
        row.memory.clear();
        for metric in &mut row.metrics.0 {
            metric.figure = Figure::Absent {
                reason: "no price".into(),
            };
        }
        row.mfu = tprimat_numbers::figures::Figure::Absent {
            reason: "the precision is not stated".into(),
        };
        for repeat in &mut row.repeats {
            (repeat.telemetry, repeat.curve.loss) = (None, vec![None; 60]);
        }
    }
    let names: Vec<_> = left_out(&comparison)
        .iter()
        .map(|(name, _)| *name)
        .collect();
    assert_eq!(
        names,
        [
            "sweep", "mfu", "loss", "memory", "energy", "cost", "scaling"
        ]
    );
    assert!(left_out(&comparison).contains(&("cost", "no price".to_owned())));
    // All failed: the overview says so.
    let mut none = self::comparison(Sample {
        cells: 4,
        troubled: true,
        ..PLAIN
    });
    none.rows.clear();
    none.groups.clear();
    assert_eq!(left_out(&none).len(), PLOTS.len() - 2);
    assert!(
        pictures(&none).unwrap().drawn[0]
            .svg
            .contains("out of memory")
    );
    assert_eq!(faults(&none), [""; 0]);
    assert_eq!(
        left_out(&self::comparison(Sample {
            cells: 0,
            groups: 0,
            ..PLAIN
        }))
        .len(),
        PLOTS.len() - 2
    );
}

/// Cells of other groups are in no panel: each heading is followed by its own cells only.
#[test]
fn groups_never_share_a_panel() {
    let comparison = comparison(Sample {
        cells: 9,
        groups: 2,
        ..PLAIN
    });
    for picture in pictures(&comparison).unwrap().drawn {
        let svg = roxmltree::Document::parse(&picture.svg).unwrap();
        let names = names_of(&comparison);
        let mut group = None;
        let mut seen = vec![false; comparison.rows.len()];
        for words in svg
            .descendants()
            .filter(|n| n.has_tag_name("text"))
            .filter_map(|n| n.text())
        {
            let words = words.trim();
            let heading = comparison
                .groups
                .iter()
                .position(|g| words.starts_with("llama-3.1-8b: ") && words.contains(&g.workload));
            group = heading.or(group);
            let name = words.trim_end_matches(" (baseline)");
            if let Some(index) = names.iter().position(|one| one == name) {
                seen[index] = true;
                assert_eq!(
                    Some(comparison.rows[index].group),
                    group,
                    "{}: {words}",
                    picture.name
                );
            }
        }
        assert!(seen.iter().all(|seen| *seen), "{}", picture.name);
    }
}

#[test]
fn losses_of_another_seed_have_panels_of_their_own() {
    let mut comparison = comparison(Sample { cells: 4, ..PLAIN });
    let one = named(&pictures(&comparison).unwrap(), "loss")
        .svg
        .matches(">\nloss\n")
        .count();
    let seed = comparison.rows[2]
        .contract
        .0
        .iter_mut()
        .find(|f| f.field == "seed")
        .unwrap();
    seed.value = 7.into();
    // The guard decides: with `--across seed` it numbers both alike.
    assert_eq!(
        named(&pictures(&comparison).unwrap(), "loss")
            .svg
            .matches(">\nloss\n")
            .count(),
        2
    );
    comparison.rows[2].loss_group = 1;
    let svg = named(&pictures(&comparison).unwrap(), "loss").svg.clone();
    assert_eq!((one, svg.matches(">\nloss\n").count()), (2, 4));
    assert!(svg.contains(": loss not comparable: seed: 7, not 1"));
}

fn scaled(reference: Option<String>) -> Metric {
    Metric {
        name: "scaling_efficiency".into(),
        title: "scaling efficiency".into(),
        unit: "fraction".into(),
        higher_is_better: Some(true),
        reference,
        figure: Figure::Ok {
            value: 0.93,
            basis: "beside cell 1".into(),
        },
    }
}

#[test]
fn cells_of_several_device_counts_share_a_line_where_the_metric_joins_them() {
    let with_counts = |groups| {
        let mut comparison = comparison(Sample {
            cells: 3,
            groups,
            ..PLAIN
        });
        for (row, devices) in comparison.rows.iter_mut().zip([1u64, 2, 4]) {
            (row.platform, row.framework) = ("nvd".into(), "tran".into());
            row.axes = [("num_gpus".to_owned(), devices.to_string())].into();
            row.contract.0[0].value = devices.into();
            row.tokens_per_second = Some(1000.0 * devices as f64 * 0.9);
        }
        let smallest = comparison.rows[0].cell.clone();
        for row in &mut comparison.rows[1..] {
            row.metrics.0.push(scaled(Some(smallest.clone())));
        }
        comparison
    };
    assert!(
        named(&pictures(&with_counts(1)).unwrap(), "scaling")
            .svg
            .contains("4 devices: 3,600 tokens/s")
    );
    // What the metric did not accept is not joined by a line: another micro-batch, say.
    let mut other = with_counts(1);
    other.rows[2]
        .metrics
        .0
        .retain(|m| m.name != "scaling_efficiency");
    let svg = named(&pictures(&other).unwrap(), "scaling").svg.clone();
    assert!(
        svg.contains("2 devices: 1,800 tokens/s") && !svg.contains("4 devices:"),
        "{svg}"
    );
    let mut apart = with_counts(3);
    apart
        .rows
        .iter_mut()
        .for_each(|row| row.metrics.0.retain(|m| m.name != "scaling_efficiency"));
    assert!(
        pictures(&apart)
            .unwrap()
            .left_out
            .iter()
            .any(|l| l.name == "scaling")
    );
    // The metric joins workloads that differ in the devices alone.
    assert!(
        named(&pictures(&with_counts(3)).unwrap(), "scaling")
            .svg
            .contains("4 devices: 3,600 tokens/s")
    );
    assert_eq!(faults(&apart), [""; 0]);
    assert_eq!(faults(&with_counts(1)), [""; 0]);
}

#[test]
fn memory_is_shown_beside_what_the_device_has() {
    let mut comparison = comparison(Sample { cells: 1, ..PLAIN });
    let shows = |comparison: &Comparison, words: &str| {
        named(&pictures(comparison).unwrap(), "memory")
            .svg
            .contains(words)
    };
    assert!(shows(&comparison, "40.00 GiB of 80.00 GiB peak allocated"));
    comparison.rows[0].memory_capacity_bytes = None;
    assert!(shows(&comparison, "40.00 GiB peak allocated") && !shows(&comparison, "of 80.00 GiB"));
}

#[test]
fn the_rates_say_of_every_repeat_why_it_does_not_count() {
    let mut comparison = comparison(Sample { cells: 2, ..PLAIN });
    comparison.rows[1].uncounted = UncountedRepeats {
        failed: 1,
        contradicted: 2,
        suspect: 3,
        unmeasured: 4,
    };
    let svg = named(&pictures(&comparison).unwrap(), "compare")
        .svg
        .clone();
    let counts = "n = 3 of 3, 1 failed, 2 contradicted, 3 suspect, 4 unmeasured";
    assert!(svg_words(&svg).contains(counts), "{svg}");
}

#[test]
fn a_framework_has_one_colour_in_all_pictures() {
    let mut comparison = comparison(Sample { cells: 4, ..PLAIN });
    let cells = [
        ("tran", "@compile=false"),
        ("tran", "@compile=true"),
        ("native", "@compile=false"),
        ("titan", "@compile=true"),
    ];
    for (row, (framework, axes)) in comparison.rows.iter_mut().zip(cells) {
        row.cell = format!("nvd/{framework}/llama/single{axes}");
        row.framework = framework.into();
    }
    let shown = Shown::of(&comparison);
    let look = |framework: &str, axes: &str| {
        let cell = format!("nvd/{framework}/llama/single{axes}");
        let cell = shown.cells().find(|one| one.row.cell == cell).unwrap();
        cell.colour
    };
    for axes in ["@compile=false", "@compile=true"] {
        assert_eq!(look("tran", axes), colour_of("tran"));
    }
    for picture in pictures(&comparison).unwrap().drawn {
        for framework in ["tran", "native", "titan"] {
            let colour = hex(colour_of(framework));
            assert!(
                picture.svg.contains(&colour),
                "{}: {framework}",
                picture.name
            );
        }
    }
}

/// Six values, of two frameworks; over another axis as well where `second`.
fn swept(fields: bool, second: bool) -> Comparison {
    let mut comparison = comparison(Sample { cells: 36, ..PLAIN });
    for (i, row) in comparison.rows.iter_mut().enumerate() {
        let x = 1024u64 << (i % 6);
        let micro = 1u64 << (i / 6);
        row.framework = if i >= 18 && !second {
            "titan"
        } else {
            "native"
        }
        .into();
        row.platform = "nvd".into();
        row.axes = [("seq".to_owned(), x.to_string())].into();
        let name = if second {
            row.axes.insert("micro".into(), micro.to_string());
            format!("micro={micro},seq={x}")
        } else {
            row.axes.insert("kind".into(), format!("k{}", i / 6));
            format!("kind=k{},seq={x}", i / 6)
        };
        row.cell = format!("nvd/{}/llama/single@{name}", row.framework);
        row.tokens_per_second_per_gpu.units = row.tokens_per_second_per_gpu.values.clone();
        if fields {
            row.contract.0[0].value = x.into();
        }
    }
    comparison
}

#[test]
fn a_sweep_is_curves_and_names_the_fastest_of_one_workload_alone() {
    for (fields, second) in [(false, false), (true, false), (false, true), (true, true)] {
        let comparison = swept(fields, second);
        assert_eq!(faults(&comparison), [""; 0], "{fields} {second}");
        let all = pictures(&comparison).unwrap();
        let svg = &named(&all, "sweep").svg;
        assert!(svg.contains(" over "), "{svg}");
        assert_eq!(
            svg.contains("no point is called the fastest of all"),
            fields
        );
        assert_eq!(
            svg.contains("has the highest rate") || svg.contains("is fastest:"),
            !fields
        );
        // Points of many workloads have no bars each.
        assert_eq!(
            all.drawn.iter().any(|picture| picture.name == "memory"),
            !fields
        );
        assert_eq!(
            svg.contains("native, seq 2,048"),
            second,
            "a line a value: {svg}"
        );
        // A caption speaks of what its picture has.
        for name in ["sweep", "compare"] {
            let svg = &named(&all, name).svg;
            assert!(svg.contains("Whiskers: 95 %"), "{name}: {svg}");
            let has_bars = name == "compare" && !fields;
            assert_eq!(svg.contains("Longer is faster"), has_bars, "{name}: {svg}");
            let is_named = svg.contains("Ring: the fastest point");
            assert!(!(fields && is_named), "{name}: {svg}");
        }
    }
}
