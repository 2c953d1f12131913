//! The report page while a build goes on: written again between its runs, with what is measured by
//! then, so that any browser can show it.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    cli::{flags::Overrides, session::Session},
    error::Result,
    execute::{
        Event, Progress, Reporter, derived,
        reading::{self, FigureScope},
    },
    plan::CompareConfig,
    publish::{self, RunningPage},
    report::{self, Meta},
};

/// After a page that took 1 s to write, no other one is written for so many seconds.
const PARTS: u32 = 20;
/// Beside a run, which takes minutes, this is nothing.
const NOTHING: Duration = Duration::from_millis(200);

/// Listens to a build and writes its page: while the event is told that a run is over, nobody starts
/// the next one.
pub(super) struct Page {
    session: Arc<Session>,
    folder: PathBuf,
    progress: Progress,
    /// When the page was last written, and how long that took.
    written: Option<(Instant, Duration)>,
}

impl Page {
    pub fn of(session: &Arc<Session>) -> Self {
        Self {
            session: Arc::clone(session),
            folder: publish::output_dir(&session.plan),
            progress: Progress::default(),
            written: None,
        }
    }

    fn write(&self) -> Result<()> {
        let Session { plan, cache, .. } = &*self.session;
        let engine = self.session.engine(&Overrides::default());
        let statuses = engine.evaluate_all()?;
        let seeds = reading::cell_seeds(&engine, &statuses, FigureScope::Everything)?;
        // What is damaged is told by the tasks that need it.
        let settings = CompareConfig::of(plan);
        let comparison = derived::compare_cells(seeds, &settings, cache, |_, _| Ok(()))?;
        let meta = Meta {
            matrix: plan.matrix.name.clone(),
            ..Meta::default()
        };
        let runs = self.progress.told();
        let page = RunningPage {
            matrix: &plan.matrix.name,
            html: &report::html(&comparison, &[], &meta)?,
            has_figures: !comparison.rows.is_empty(),
            how_far: &format!(
                "{}. This was so at {}; the page is loaded again every few seconds, and has its pictures when the build is over.",
                runs.as_deref().unwrap_or("its run is made"),
                jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M:%S UTC")
            ),
        };
        publish::write_running_page(&self.folder, &page, cache)
    }
}

impl Reporter for Page {
    fn report(&mut self, event: &Event) {
        self.progress.take(event);
        let is_news = match event {
            Event::BuildStarted { .. } => true,
            Event::TaskFinished { task, .. } => task.starts_with("train "),
            _ => false,
        };
        let is_soon =
            |(at, took): (Instant, Duration)| took > NOTHING && at.elapsed() < took * PARTS;
        if is_news && !self.progress.left.is_empty() && !self.written.is_some_and(is_soon) {
            let begun = Instant::now();
            // A page that cannot be written now fails no build; the last one is a task of it.
            let _ = self.write();
            self.written = Some((Instant::now(), begun.elapsed()));
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let Session { plan, cache, .. } = &*self.session;
        let _ = publish::end_running_page(&self.folder, &plan.matrix.name, cache);
    }
}
