//! Where things stand in a picture: nothing overlaps, leaves it or grows without bound.

use super::{
    style::{FAINT, HALF, INK, MARGIN, WIDTH},
    *,
};

/// The words of a picture, each with its left, upper, right and lower edge.
fn words(svg: &roxmltree::Document) -> Vec<([i32; 4], String)> {
    let number = |node: &roxmltree::Node, name: &str| -> f64 {
        node.attribute(name).unwrap().parse().unwrap()
    };
    let word = |node: roxmltree::Node| {
        let words = node.text().unwrap().trim_matches('\n').to_owned();
        let font = number(&node, "font-size");
        let width = text::width_of(&words, (font * 1.24).round() as i32);
        let (x, y) = (number(&node, "x") as i32, number(&node, "y") as i32);
        let left = match node.attribute("text-anchor") {
            None => x,
            Some("middle") => x - width / 2,
            Some(_) => x - width,
        };
        ([left, y, left + width, y + font as i32], words)
    };
    let nodes = svg.descendants().filter(|n| n.has_tag_name("text"));
    nodes.map(word).collect()
}

/// What is wrong with the layout: words that lie on other words, or that leave the picture.
pub fn layout_faults(svg: &str) -> Vec<String> {
    let svg = roxmltree::Document::parse(svg).unwrap();
    let height: i32 = svg
        .root_element()
        .attribute("height")
        .unwrap()
        .parse()
        .unwrap();
    let mut boxes = words(&svg);
    boxes.sort_unstable_by_key(|(b, _)| b[1]);
    let outside = |b: &[i32; 4]| b[0] < 0 || b[1] < 0 || b[2] > WIDTH || b[3] > height;
    let mut faults: Vec<String> = boxes
        .iter()
        .filter(|(b, _)| outside(b))
        .map(|(b, w)| format!("outside: {w:?} {b:?}"))
        .collect();
    for (i, (a, words)) in boxes.iter().enumerate() {
        for (b, other) in boxes[i + 1..].iter().take_while(|(b, _)| b[1] < a[3]) {
            if a[0] < b[2] && b[0] < a[2] {
                faults.push(format!("{words:?} {a:?} lies on {other:?} {b:?}"));
            }
        }
    }
    let points = svg
        .descendants()
        .filter_map(|node| node.attribute("points"));
    for point in points.flat_map(|points| points.split(' ')) {
        let (x, y) = point.split_once(',').unwrap();
        let (x, y): (i32, i32) = (x.parse().unwrap(), y.parse().unwrap());
        if !(0..=WIDTH).contains(&x) || !(0..=height).contains(&y) {
            faults.push(format!("a shape at {point} is outside"));
        }
    }
    faults
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
            let height = canvas.top;
            assert!(height <= 12_100, "{name} of {cells} cells: {height} px");
            let words = svg_words(&canvas.svg().unwrap());
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
    let told = |row: &tprimat_numbers::figures::Row| {
        (row.tokens_per_second_per_gpu.value, row.cell.clone())
    };
    let of_group = |c: &Comparison, group| -> Vec<(f64, String)> {
        let members = c.rows.iter().filter(|row| row.group == group);
        members.map(told).collect()
    };
    let of_shown = |shown: &Shown, group: usize| -> Vec<(f64, String)> {
        let cells = shown.workloads[group].cells.iter();
        cells.map(|cell| told(cell.row)).collect()
    };
    let baseline = of_group(&comparison, 1).swap_remove(57).1;
    comparison.groups[1].baseline = baseline;
    let shown = Shown::of(&comparison);
    assert_eq!((shown.cells().count(), shown.workloads.len()), (60, 2));
    for group in [0, 1] {
        let (all, kept) = (of_group(&comparison, group), of_shown(&shown, group));
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
    }
    let few = self::comparison(Sample {
        cells: 60,
        groups: 3,
        ..PLAIN
    });
    let few = Shown::of(&few);
    assert_eq!(few.cells().count(), 60, "nothing is left out");
    // The fastest first, whatever the matrix has first.
    for group in 0..3 {
        let rates: Vec<f64> = of_shown(&few, group)
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
        let svg = &named(&pictures(&comparison).unwrap(), "compare")
            .svg
            .clone();
        assert!(svg.contains("no figure"), "{bad}");
        assert!(!svg.contains("NaN,") && !svg.contains("=\"NaN\""), "{bad}");
    }
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
    let svg = roxmltree::Document::parse(&named(&first, "compare").svg).unwrap();
    assert!(
        svg.descendants()
            .any(|node| { node.text().is_some_and(|t| t.contains("a-model-<with>&")) })
    );
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
    [dashed(FAINT), dashed(INK), feet.collect()]
}

#[test]
fn step_times_show_where_the_warm_up_ends_and_where_each_repeat_is_measured_from() {
    let mut comparison = comparison(Sample { cells: 1, ..PLAIN });
    let x = axis::Scale::new([1.0, 60.0]);
    let panel = lines::Lines::new("", "", x, x);
    let x = x.on(panel.across(MARGIN, HALF));
    let at = |step: f64| x.at(step);
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
