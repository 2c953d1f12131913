//! What each task's key covers. This file is the list; ARCHITECTURE.md has it in more words, and
//! `show --stale` shows it.
//!
//! | task | its key covers | what must not touch it |
//! |---|---|---|
//! | render | template text, names of the launch files, job | prices, descriptions, plot style |
//! | train | rendered bytes, the recipe's other files, the source of the shipped trainer, command, files that it names and declared inputs, declared environment, the lock's facts that the recipe names, the digests of dataset, tokenizer and container image, vendor, GPU count, repeat, `share`, `launch_abi`, `nodes` of a run on several whose last rank prints the steps, and the job where the recipe hands it over | tprimat's version, parser, prices, timeouts, host names, paths |
//! | parse | digests of the attempt's outputs, which attempt, how it ended and what disturbed it, job, the recipe's log section, settings that the recipe does not hand over | templates that render the same bytes |
//! | aggregate | digests of the results, what was measured and does not count, statistics settings | prices |
//! | compare | digests of the summaries, declared variables and lock facts of the cells, which of them launch the same, contract rules, prices, peaks | anything else |
//! | plot, report | digests of what they draw and publish (of a report also the jobs and results) | anything else |
//!
//! All but the train key also cover one digest of tprimat's analysis: the sources that can decide a
//! value, and Cargo.lock (`sources.rs`). Another tprimat computes them again, and trains nothing for it.

use serde_json::json;

use super::{Engine, Status, Statuses};
use crate::{
    cache::{Attempt, Output, TaskKind},
    digest::Digest,
    figures::Dropped,
    job::RunOutcome,
    matrix::CellId,
    plan::preimage::{ANALYSIS, Preimage, RANKS},
    recipe::Nodes,
    words::secret::public_value,
};

/// A key and the text that it hashes.
pub type Keyed = (Digest, String);

impl Engine<'_> {
    pub(super) fn render_key(&self, cell: CellId) -> Option<Keyed> {
        let prepared = self.plan.prepared(cell)?;
        let recipe = self.plan.recipe(cell);
        let image = Preimage::new(TaskKind::Render)
            .field("launch_files", &recipe.launch_digest)
            .field(ANALYSIS, &self.code.analysis)
            .field("job", &prepared.job_digest)
            .fields(
                "template",
                recipe
                    .templates
                    .iter()
                    .map(|(name, digest)| (name.as_str(), digest)),
            );
        Some(image.finish())
    }

    pub(super) fn train_key(
        &self,
        cell: CellId,
        repeat: u32,
        rendered: &[Output],
    ) -> Option<Keyed> {
        let prepared = self.plan.prepared(cell)?;
        let facts = prepared.facts.known.as_ref().ok()?;
        let mut image = self
            .launch_image(cell, rendered)?
            .field("repeat", &repeat)
            .fields(
                "fact",
                facts.iter().map(|(name, value)| (name.as_str(), value)),
            );
        for file in &prepared.data {
            image = image.field(file.kind.name(), file.digest.as_ref().ok()?);
        }
        if let Some(container) = &prepared.image {
            image = image.field("image", container.digest.as_ref().ok()?);
        }
        Some(image.finish())
    }

    /// Names what a cell launches, also where the facts of its platform are not known.
    pub(super) fn launch_digest(&self, cell: CellId, rendered: &[Output]) -> Option<Digest> {
        let of = &self.plan.matrix.cells[cell];
        let mut image = self
            .launch_image(cell, rendered)?
            .field("facts", &(&*of.platform, &*of.framework));
        for file in &self.plan.prepared(cell)?.data {
            image = image.field(file.kind.name(), &file.name);
        }
        if let Some(container) = &self.plan.prepared(cell)?.image {
            image = image.field("image", &container.name);
        }
        Some(image.finish().0)
    }

    /// What a train key covers of the launch itself.
    fn launch_image(&self, cell: CellId, rendered: &[Output]) -> Option<Preimage> {
        let prepared = self.plan.prepared(cell)?;
        let recipe = self.plan.recipe(cell);
        let launch = &recipe.file.launch;
        let files = recipe.files_of_run(prepared.job().vendor);
        let mut image = Preimage::new(TaskKind::Train)
            .field("command", &launch.command)
            .field("launch_abi", &launch.launch_abi)
            // Devices are handed out at launch, so they count even where no launch file names them.
            .field("num_gpus", &prepared.job().parallelism.num_gpus)
            .field("vendor", &prepared.job().vendor)
            .fields(
                "rendered",
                rendered.iter().map(|o| (o.name.as_str(), o.digest)),
            )
            .fields("recipe", files.map(|(name, _, digest)| (name, digest)))
            .fields(
                "input",
                prepared
                    .inputs
                    .files
                    .iter()
                    .map(|input| (input.name.as_str(), &input.digest)),
            )
            // A new token or password is the same measurement, and no record may hold one.
            .fields(
                "env",
                prepared
                    .resolved
                    .env
                    .iter()
                    .map(|(name, value)| (name.as_str(), public_value(name, value))),
            );
        if self
            .plan
            .recipe(cell)
            .file
            .require
            .programs
            .iter()
            .any(|p| p == "tprimat-native")
        {
            image = image.field("program.tprimat-native", &self.code.native);
        }
        if launch.reads_job {
            image = image.field("job", &prepared.job_digest);
        }
        if prepared.resolved.share {
            image = image.field("share", &true);
        }
        // Whoever reads the log later must know which rank wrote it.
        if prepared.job().parallelism.num_nodes > 1 && launch.nodes == Nodes::LastRankSpeaks {
            image = image.field(RANKS, &launch.nodes);
        }
        Some(image)
    }

    pub(super) fn parse_key(&self, cell: CellId, attempt: &Attempt) -> Option<Keyed> {
        let prepared = self.plan.prepared(cell)?;
        let outcome = match &attempt.outcome {
            RunOutcome::Ok => json!("ok"),
            RunOutcome::Failed { status, .. } => json!({ "failed": status }),
        };
        let mut image = Preimage::new(TaskKind::Parse)
            .field("attempt", &attempt.id)
            .field("outcome", &outcome)
            .field("job", &prepared.job_digest)
            .field("log", &self.plan.recipe(cell).file.log)
            .field(ANALYSIS, &self.code.analysis)
            .fields(
                "output",
                attempt.outputs.iter().map(|o| (o.name.as_str(), o.digest)),
            );
        if let Some(why) = &attempt.suspect {
            image = image.field("suspect", why);
        }
        let unreached = self.plan.unreached(cell);
        let unreached: Vec<&str> = unreached
            .iter()
            .filter(|field| field.is_of_speed)
            .map(|field| field.setting)
            .collect();
        if !unreached.is_empty() {
            image = image.field("not_handed_over", &unreached);
        }
        let unwritten = self.plan.unwritten(cell);
        if !unwritten.is_empty() {
            image = image.field("unwritten", unwritten);
        }
        Some(image.finish())
    }

    pub(super) fn aggregate_key(
        &self,
        cell: CellId,
        results: &[(u32, Digest)],
        dropped: &[&Dropped],
    ) -> Keyed {
        let numbered: Vec<(String, &Dropped)> =
            dropped.iter().map(|d| (d.repeat.to_string(), *d)).collect();
        Preimage::new(TaskKind::Aggregate)
            .fields(
                "dropped",
                numbered
                    .iter()
                    .map(|(repeat, dropped)| (repeat.as_str(), dropped)),
            )
            .field(
                "statistics",
                &self.plan.prepared(cell).map(|p| &p.resolved.statistics),
            )
            .field(ANALYSIS, &self.code.analysis)
            .fields(
                "result",
                results
                    .iter()
                    .map(|(repeat, digest)| (repeat.to_string(), digest))
                    .collect::<Vec<_>>()
                    .iter()
                    .map(|(r, d)| (r.as_str(), *d)),
            )
            .finish()
    }

    /// Each cell's name, and what the comparison shows of it. Values, because their fields are
    /// sorted by name: the text does not hang on the order in which a type declares them.
    fn compared_values(&self, statuses: &Statuses) -> Vec<(&str, serde_json::Value)> {
        let values = self.compared_cells(statuses).into_iter().map(|cell| {
            serde_json::to_value(cell).expect("digests, counts and texts are always JSON")
        });
        let names = self.plan.cells.iter().map(|cell| cell.id.as_str());
        names.zip(values).collect()
    }

    pub(super) fn compare_key(&self, statuses: &Statuses) -> Keyed {
        let cells = self.compared_values(statuses);
        Preimage::new(TaskKind::Compare)
            .tree("settings", &self.compare_settings)
            .field(
                "order",
                &Digest::of(
                    cells
                        .iter()
                        .map(|(id, _)| format!("{id}\n"))
                        .collect::<String>(),
                ),
            )
            .field(ANALYSIS, &self.code.analysis)
            .fields("cell", cells.iter().map(|(id, state)| (*id, state)))
            .finish()
    }

    pub(super) fn plot_key(&self, compare: &[Output]) -> Keyed {
        Preimage::new(TaskKind::Plot)
            .field(ANALYSIS, &self.code.analysis)
            .fields(
                "compare",
                compare.iter().map(|o| (o.name.as_str(), o.digest)),
            )
            .finish()
    }

    pub(super) fn report_key(&self, compare: &Status, plot: &Status, statuses: &Statuses) -> Keyed {
        let digest = |value: serde_json::Result<Vec<u8>>| Digest::of(value.unwrap_or_default());
        let results = |cell| self.results(cell, statuses).into_iter().map(|(_, d)| d);
        let published: Vec<(Digest, Vec<Digest>)> = self
            .published(statuses)
            .into_iter()
            .map(|(cell, prepared)| (prepared.job_digest, results(cell).collect()))
            .collect();
        Preimage::new(TaskKind::Report)
            .field(ANALYSIS, &self.code.analysis)
            .field("matrix", &self.plan.matrix.name)
            .field(
                "cells",
                &digest(serde_json::to_vec(&self.compared_values(statuses))),
            )
            .field("jobs_and_results", &digest(serde_json::to_vec(&published)))
            .fields(
                "compare",
                compare
                    .outputs()
                    .iter()
                    .map(|o| (o.name.as_str(), o.digest)),
            )
            .fields(
                "plot",
                plot.outputs().iter().map(|o| (o.name.as_str(), o.digest)),
            )
            .finish()
    }
}
