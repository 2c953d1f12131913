//! The guard: which summaries may stand side by side, and in which words they differ.

use super::{
    CUSUM, CellInput, CellState, CompareSettings, DECLARED, Difference, Estimate, FieldDifference, Group, StepTime,
    Summary, Tier, differences,
};

/// Under this strategy nothing at all may differ but platform and framework.
const STRICT_STRATEGY: &str = "identical_config";

/// A cell with figures.
pub(super) struct Arm<'a> {
    pub cell: &'a CellInput,
    pub summary: &'a Summary,
    pub estimate: &'a Estimate,
    pub step_time: &'a StepTime,
    pub group: usize,
}

impl Arm<'_> {
    pub fn is_strict(&self) -> bool {
        self.cell.parallelism == STRICT_STRATEGY
    }
}

/// Indices into the arms.
pub(super) struct Grouped {
    pub baseline: usize,
    pub members: Vec<usize>,
}

impl Grouped {
    /// The baseline first.
    fn baseline_first(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.baseline).chain(self.members.iter().copied().filter(|i| *i != self.baseline))
    }

    pub fn describe(&self, arms: &[Arm<'_>]) -> Group {
        let base = &arms[self.baseline];
        Group {
            model: base.cell.model.clone(),
            workload: workload(base.summary),
            identical_config: base.is_strict(),
            baseline: base.cell.cell.clone(),
            cells: self.members.iter().map(|&i| arms[i].cell.cell.clone()).collect(),
        }
    }
}

/// `sequence 2048, batch 128, 8 devices`
fn workload(summary: &Summary) -> String {
    let contract = &summary.contract;
    let count = |field, words: fn(u64) -> String| contract.count(field).map(words);
    let parts = [
        count("seq_length", |n| format!("sequence {n}")),
        count("global_batch_size", |n| format!("global batch {n}")),
        count("num_gpus", |n| format!("{n} {}", if n == 1 { "device" } else { "devices" })),
        contract.get("data").and_then(|d| d.as_str()).map(|d| format!("{d} data")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// What forbids putting two arms side by side.
fn blocking(a: &Arm<'_>, b: &Arm<'_>, settings: &CompareSettings) -> Vec<FieldDifference> {
    let strict = a.is_strict() && b.is_strict();
    let forbids = |d: &FieldDifference| {
        d.is_known() && (d.tier == Tier::Workload || strict) && !settings.across.contains(&d.field)
    };
    differences(&a.summary.contract, &b.summary.contract).into_iter().filter(forbids).collect()
}

/// Sorts the arms into groups, each with its baseline. To fit is not transitive, for a value that is not stated fits
/// any; so a member fits every other member, and any of them can be the baseline.
pub(super) fn group(arms: &mut [Arm<'_>], settings: &CompareSettings) -> Vec<Grouped> {
    let mut groups: Vec<Grouped> = Vec::new();
    for i in 0..arms.len() {
        let fits_arm = |b: &usize| {
            let (a, b) = (&arms[i], &arms[*b]);
            is_expected(a, b, settings) && blocking(a, b, settings).is_empty()
        };
        let fits = |group: &Grouped| group.members.iter().all(fits_arm);
        let at = groups.iter().position(fits).unwrap_or_else(|| {
            groups.push(Grouped { baseline: i, members: Vec::new() });
            groups.len() - 1
        });
        groups[at].members.push(i);
        if settings.baseline.as_deref() == Some(&arms[i].cell.cell) {
            groups[at].baseline = i;
        }
        arms[i].group = at;
    }
    groups
}

/// Does anybody expect these two to be compared?
fn is_expected(a: &Arm<'_>, b: &Arm<'_>, settings: &CompareSettings) -> bool {
    settings.named || (a.cell.model == b.cell.model && a.is_strict() == b.is_strict())
}

pub(super) fn difference(a: &Arm<'_>, b: &Arm<'_>, field: FieldDifference, refused: bool) -> Difference {
    Difference { cell_a: a.cell.cell.clone(), cell_b: b.cell.cell.clone(), field, refused }
}

/// Why the groups of what was expected to be one are several.
pub(super) fn refused(arms: &[Arm<'_>], groups: &[Grouped], settings: &CompareSettings) -> Vec<Difference> {
    let mut all = Vec::new();
    for (i, group) in groups.iter().enumerate() {
        let expected = |g: &&Grouped| is_expected(&arms[group.baseline], &arms[g.baseline], settings);
        let Some(first) = groups[..i].iter().find(expected) else { continue };
        // The two baselines may lack the value that other members differ in.
        let pairs = group.baseline_first().flat_map(|a| first.baseline_first().map(move |b| (&arms[a], &arms[b])));
        let found = pairs.map(|(a, b)| (a, b, blocking(a, b, settings))).find(|(.., fields)| !fields.is_empty());
        if let Some((a, b, fields)) = found {
            all.extend(fields.into_iter().map(|field| difference(a, b, field, true)));
        }
    }
    all
}

/// Two cells were named, and one has no figures that count: what forbids the comparison is told all the same.
pub(super) fn refused_without_figures(
    cells: &[CellInput],
    arms: &[Arm<'_>],
    settings: &CompareSettings,
) -> Vec<Difference> {
    let ([a, b], true) = (cells, settings.named && arms.len() < 2) else { return Vec::new() };
    let (CellState::Ok { summary: of_a }, CellState::Ok { summary: of_b }) = (&a.state, &b.state) else {
        return Vec::new();
    };
    let forbids = |d: &FieldDifference| d.is_known() && d.tier == Tier::Workload && !settings.across.contains(&d.field);
    let found = differences(&of_b.contract, &of_a.contract).into_iter().filter(forbids);
    let told = |field| Difference { cell_a: b.cell.clone(), cell_b: a.cell.clone(), field, refused: true };
    found.map(told).collect()
}

/// What a reader must know beside any figure that puts `a` next to `b`.
pub(super) fn labels(a: &Arm<'_>, b: &Arm<'_>, settings: &CompareSettings) -> Vec<String> {
    let known = differences(&a.summary.contract, &b.summary.contract).into_iter().filter(FieldDifference::is_known);
    let label = |d: FieldDifference| {
        let across = d.tier == Tier::Workload && settings.across.contains(&d.field);
        if across { format!("across {}", d.sentence()) } else { d.sentence() }
    };
    let warmup = warmup_difference(a.summary, b.summary)
        .map(|words| if settings.crosses_warmup() { format!("across {words}") } else { words });
    // What somebody else measured is not what we did, whatever its figures are.
    let imported = (a.cell.imported.is_empty() != b.cell.imported.is_empty())
        .then(|| format!("{} is imported", if a.cell.imported.is_empty() { &b.cell.cell } else { &a.cell.cell }));
    imported.into_iter().chain(warmup).chain(known.map(label)).collect()
}

/// `warm-up 9, not 5 steps`: the two do not drop the same steps, or not by the same rule.
fn warmup_difference(a: &Summary, b: &Summary) -> Option<String> {
    let mut parts = Vec::new();
    if a.warmup_steps != b.warmup_steps {
        parts.push(format!("warm-up {}, not {} steps", a.warmup_steps, b.warmup_steps));
    }
    if a.steady_state != b.steady_state {
        let rule = |s: &Summary| match s.steady_state.as_str() {
            CUSUM => format!("by {CUSUM}"),
            DECLARED => "by declared warm-up alone".to_owned(),
            _ => "in part by declared warm-up alone".to_owned(),
        };
        parts.push(format!("steady state {}, not {}", rule(a), rule(b)));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// May a difference between the two be tested? Not where one of them still measures steps that the other declares to be
/// warm-up, and nobody has looked whether they are. docs/METRICS.md, "Steady state".
pub(super) fn measure_alike(a: &Summary, b: &Summary) -> bool {
    a.warmup_steps == b.warmup_steps || [a, b].iter().all(|s| s.steady_state == CUSUM)
}
