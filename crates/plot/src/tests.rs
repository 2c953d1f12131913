use tprimat_figures::{Comparison, Figure, Metric, RepeatStatus};

use super::{sample::Sample, *};

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
    text::register_fonts().unwrap();
    let shown = Shown::of(comparison);
    let of = |(name, _, draw): (&str, &str, Draw)| {
        let faults = draw(&shown)
            .map(|canvas| canvas.bounded().faults())
            .unwrap_or_default();
        faults
            .into_iter()
            .map(|fault| format!("{name}: {fault}"))
            .collect::<Vec<_>>()
    };
    PLOTS.into_iter().flat_map(of).collect()
}

#[test]
fn no_words_lie_on_others_or_leave_the_picture() {
    for cells in [1, 2, 8, 40, 60] {
        for (groups, repeats, troubled) in [(1, 3, false), (1, 1, true), (cells.min(3), 3, true)] {
            let found = faults(&comparison(Sample {
                cells,
                groups,
                repeats,
                troubled,
                ..PLAIN
            }));
            assert!(
                found.is_empty(),
                "{cells} cells, {groups} groups, {repeats} repeats: {found:#?}"
            );
        }
    }
    assert_eq!(
        faults(&comparison(Sample {
            cells: 8,
            groups: 8,
            ..PLAIN
        })),
        [""; 0]
    );
}

/// A picture that no viewer opens, or that needs gigabytes to be drawn, is worth nothing: 500
/// workloads of one cell once made one of 200,000 pixels.
#[test]
fn a_picture_has_a_bounded_size_however_many_cells_there_are() {
    for (cells, groups, troubled) in [
        (500, 500, false),
        (500, 1, true),
        (500, 17, true),
        (61, 61, true),
    ] {
        let mut comparison = comparison(Sample {
            cells,
            groups,
            troubled,
            ..PLAIN
        });
        for (i, row) in comparison.rows.iter_mut().enumerate() {
            row.labels = (0..80)
                .map(|n| format!("setting_{n}: {i}, not {}", i + 1).into())
                .collect();
            row.loss_group = i;
        }
        assert_eq!(
            faults(&comparison),
            [""; 0],
            "{cells} cells in {groups} groups"
        );
        let shown = Shown::of(&comparison);
        for (name, _, draw) in PLOTS {
            let Ok(canvas) = draw(&shown).map(Canvas::bounded) else {
                continue;
            };
            assert!(
                canvas.top <= 12_100,
                "{name} of {cells} cells: {} px",
                canvas.top
            );
            let words = canvas.words();
            assert!(
                words.contains(&format!("of {cells} cells from")),
                "{name} does not say what it leaves out: {words}"
            );
        }
    }
}

#[test]
fn of_many_cells_the_baseline_the_fastest_and_the_slowest_are_shown() {
    let mut comparison = comparison(Sample {
        cells: 200,
        groups: 2,
        ..PLAIN
    });
    let of_group = |c: &Comparison, group| -> Vec<(f64, String)> {
        let members = c.rows.iter().filter(|row| row.group == group);
        members
            .map(|row| (row.tokens_per_second_per_gpu.value, row.cell.clone()))
            .collect()
    };
    let baseline = of_group(&comparison, 1).swap_remove(57).1;
    comparison.groups[1].baseline = baseline;
    let shown = Shown::of(&comparison);
    assert_eq!(
        (shown.comparison.rows.len(), shown.comparison.groups.len()),
        (60, 2)
    );
    for group in [0, 1] {
        let (all, kept) = (
            of_group(&comparison, group),
            of_group(&shown.comparison, group),
        );
        let of_all =
            |pick: fn(f64, f64) -> f64| all.iter().map(|(rate, _)| *rate).reduce(pick).unwrap();
        let of_kept =
            |pick: fn(f64, f64) -> f64| kept.iter().map(|(rate, _)| *rate).reduce(pick).unwrap();
        assert!(
            kept.iter()
                .any(|(_, cell)| *cell == comparison.groups[group].baseline)
        );
        assert_eq!(
            (of_all(f64::max), of_all(f64::min)),
            (of_kept(f64::max), of_kept(f64::min))
        );
        assert_eq!(kept.len(), shown.comparison.groups[group].cells.len());
    }
    let few = self::comparison(Sample {
        cells: 60,
        groups: 3,
        ..PLAIN
    });
    assert_eq!(
        Shown::of(&few).comparison.rows.len(),
        60,
        "nothing is left out"
    );
    // The fastest first, whatever the matrix has first.
    for group in 0..3 {
        let rates: Vec<f64> = of_group(&Shown::of(&few).comparison, group)
            .into_iter()
            .map(|(rate, _)| rate)
            .collect();
        assert!(rates.is_sorted_by(|a, b| a >= b), "{rates:?}");
    }
}

#[test]
fn extreme_values_are_drawn_within_the_picture() {
    for scale in [1e-9, 1e-3, 1e6, 1e15] {
        let found = faults(&comparison(Sample {
            scale,
            troubled: true,
            ..PLAIN
        }));
        assert!(found.is_empty(), "{scale}: {found:#?}");
    }
    // Next to each other.
    let mut mixed = comparison(PLAIN);
    for (row, value) in mixed.rows.iter_mut().zip([1e-9, 1e15, 0.0, 5e-324, 1e300]) {
        row.tokens_per_second_per_gpu.value = value;
        row.repeats[0].curve.loss[3] = Some(value);
        row.repeats[0].curve.step_time_seconds[9] = Some(value);
    }
    assert_eq!(faults(&mixed), [""; 0]);
}

#[test]
fn what_is_no_number_is_not_drawn() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
        let mut comparison = comparison(PLAIN);
        for row in &mut comparison.rows[..2] {
            row.tokens_per_second_per_gpu.value = bad;
            row.tokens_per_second_per_gpu.ci95 = Some([bad, bad]);
            row.tokens_per_second = Some(bad);
            for repeat in &mut row.repeats {
                repeat.curve.loss = vec![Some(bad); repeat.curve.step.len()];
                repeat.curve.step_time_seconds = vec![Some(bad); repeat.curve.step.len()];
                repeat.steady.as_mut().unwrap().tokens_per_second_per_gpu = bad;
            }
        }
        assert_eq!(faults(&comparison), [""; 0], "{bad}");
        let svg = &named(&pictures(&comparison).unwrap(), "throughput")
            .svg
            .clone();
        assert!(svg.contains("no figure"), "{bad}");
        assert!(!svg.contains("NaN,") && !svg.contains("=\"NaN\""), "{bad}");
    }
}

fn named<'a>(pictures: &'a Pictures, name: &str) -> &'a Picture {
    pictures
        .drawn
        .iter()
        .find(|picture| picture.name == name)
        .unwrap()
}

#[test]
fn same_comparison_same_bytes_and_every_svg_is_xml() {
    let troubled = comparison(Sample {
        cells: 14,
        groups: 2,
        troubled: true,
        ..PLAIN
    });
    let first = pictures(&troubled).unwrap();
    assert_eq!(first, pictures(&troubled).unwrap());
    for picture in &first.drawn {
        assert!(picture.png.starts_with(b"\x89PNG"), "{}", picture.name);
        let tree = roxmltree::Document::parse(&picture.svg)
            .unwrap_or_else(|e| panic!("{}: {e}", picture.name));
        assert_eq!(tree.root_element().tag_name().name(), "svg");
    }
    // A name with angle brackets is there as it is.
    let svg = roxmltree::Document::parse(&named(&first, "throughput").svg).unwrap();
    assert!(
        svg.descendants()
            .any(|node| { node.text().is_some_and(|t| t.contains("a-model-<with>&")) })
    );
}

/// The short name of each row.
fn names_of(comparison: &Comparison) -> Vec<String> {
    let mut names = vec![String::new(); comparison.rows.len()];
    for rows in comparison.rows_by_group() {
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
        if ["compare", "throughput", "spread"].contains(&picture.name) {
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
        row.metrics.0[0].figure = Figure::Absent {
            reason: "no price".into(),
        };
        row.mfu = tprimat_figures::Mfu::Absent {
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
        ["sweep", "mfu", "loss", "memory", "power", "cost", "scaling"]
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
    assert_eq!(left_out(&none).len(), PLOTS.len() - 1);
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
        PLOTS.len() - 1
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
            let heading = comparison.groups.iter().position(|g| {
                words.starts_with("llama-3.1-8b: ")
                    && words.contains(&tprimat_sentences::said(&g.workload))
            });
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

/// Upright strokes of a picture: colour, place, width, how long each is.
fn upright(svg: &str) -> Vec<(String, i32, String, i32)> {
    let svg = roxmltree::Document::parse(svg).unwrap();
    let stroke = |node: roxmltree::Node| {
        let points = node
            .attribute("points")?
            .split(' ')
            .map(|p| p.split_once(','));
        let points: Vec<(i32, i32)> = points
            .map(|p| Some((p?.0.parse().ok()?, p?.1.parse().ok()?)))
            .collect::<Option<_>>()?;
        let [(x, top), (right, bottom)] = points[..] else {
            return None;
        };
        let width = node.attribute("stroke-width").unwrap_or("1").to_owned();
        (x == right).then(|| {
            (
                node.attribute("stroke").unwrap().to_owned(),
                x,
                width,
                bottom - top,
            )
        })
    };
    svg.descendants()
        .filter(|n| n.has_tag_name("polyline"))
        .filter_map(stroke)
        .collect()
}

/// Where a picture of step times has dashed lines, by colour, and where strokes at the foot of its
/// panel.
fn cuts(comparison: &Comparison) -> [Vec<i32>; 3] {
    let all = upright(&named(&pictures(comparison).unwrap(), "step_time").svg);
    let hex = |colour: plotters::style::RGBColor| {
        format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2)
    };
    let dashed = |colour| {
        let mut places: Vec<i32> = all
            .iter()
            .filter(|(c, ..)| *c == hex(colour))
            .map(|(_, x, ..)| *x)
            .collect();
        places.sort_unstable();
        // A tick of an axis is one stroke, a dashed line many.
        let lines = places
            .chunk_by(|a, b| a == b)
            .filter(|strokes| strokes.len() > 5);
        lines.map(|strokes| strokes[0]).collect::<Vec<_>>()
    };
    let feet = all
        .iter()
        .filter(|(.., width, length)| width == "2" && *length == 10)
        .map(|(_, x, ..)| *x);
    [dashed(style::FAINT), dashed(style::INK), feet.collect()]
}

#[test]
fn step_times_show_where_the_warm_up_ends_and_where_each_repeat_is_measured_from() {
    let mut comparison = comparison(Sample { cells: 1, ..PLAIN });
    let width = (style::WIDTH - 2 * style::MARGIN - 16) / 2;
    let frame = chart::Frame {
        left: style::MARGIN,
        top: 0,
        width,
        height: 190,
        tags: chart::NO_TAGS,
        title: "",
        x_title: "",
    };
    let at = |step: f64| frame.x([1.0, 60.0]).at(step);
    // Cut at step 6, three steps after the declared warm-up.
    assert_eq!(
        cuts(&comparison),
        [vec![at(3.0)], vec![at(6.0)], vec![at(6.0); 3]]
    );
    let cut =
        |comparison: &mut Comparison, repeat: usize, first_step: u64, dropped_steps: usize| {
            let steady = comparison.rows[0].repeats[repeat].steady.as_mut().unwrap();
            let cut = steady.cut.as_mut().unwrap();
            (cut.first_step, cut.dropped_steps) = (first_step, dropped_steps as _);
        };
    cut(&mut comparison, 1, 12, 9);
    assert_eq!(
        cuts(&comparison),
        [
            vec![at(3.0)],
            vec![at(6.0)],
            vec![at(6.0), at(12.0), at(6.0)]
        ]
    );
    // Nothing was cut besides: one line for both.
    cut(&mut comparison, 0, 3, 0);
    assert_eq!(
        cuts(&comparison),
        [vec![at(3.0)], vec![], vec![at(3.0), at(12.0), at(6.0)]]
    );
    // What does not count is measured from nowhere.
    comparison.rows[0].repeats[0].status = RepeatStatus::Unmeasured {
        reason: "no timed step".into(),
    };
    assert_eq!(
        cuts(&comparison),
        [vec![at(3.0)], vec![at(12.0)], vec![at(12.0), at(6.0)]]
    );
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
fn a_repeat_that_does_not_count_is_marked_and_moves_nothing() {
    let mut comparison = comparison(Sample { cells: 2, ..PLAIN });
    comparison.rows[1].repeats[2].status = RepeatStatus::Contradicted {
        fields: vec!["seq_length".into()],
    };
    comparison.rows[1].contradicted = 1;
    let svg = named(&pictures(&comparison).unwrap(), "spread").svg.clone();
    assert!(
        svg.contains("n = 3 of 3; #3 contradicts seq_length"),
        "{svg}"
    );
}

#[test]
fn a_framework_has_one_colour_in_all_pictures_and_its_cells_have_patterns() {
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
    text::register_fonts().unwrap();
    let shown = Shown::of(&comparison);
    let names = names::Names::wide(&shown.comparison);
    let look = |framework: &str, axes: &str| {
        let cell = format!("nvd/{framework}/llama/single{axes}");
        let at = shown
            .comparison
            .rows
            .iter()
            .position(|row| row.cell == cell);
        (names.colour(at.unwrap()), names.variant(at.unwrap()))
    };
    let (plain, compiled) = (
        look("tran", "@compile=false"),
        look("tran", "@compile=true"),
    );
    assert_eq!(
        (plain.0, compiled.0),
        (colour_of("tran"), colour_of("tran"))
    );
    assert_ne!(plain.1, compiled.1);
    assert_eq!(look("titan", "@compile=true").1, compiled.1);
    assert_eq!(look("native", "@compile=false").1, plain.1);
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
fn a_sweep_is_curves_or_a_map_and_names_the_fastest_of_one_workload_alone() {
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
            all.drawn.iter().any(|picture| picture.name == "throughput"),
            !fields
        );
        assert_eq!(svg.contains(&hex(HEAT[0])), second, "a map has shades");
    }
}
