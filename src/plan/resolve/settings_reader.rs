//! Reads the settings of a cell: every value is what was wanted, or leaves a problem, so that one
//! pass reports all of them.

use crate::{config::View, error::Problem};

/// What is wrong with the settings of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellProblem {
    pub problem: Problem,
    /// It is told with the name of the cell: settings that are right by themselves do not go
    /// together in this cell.
    pub is_of_cell: bool,
}

pub(in crate::plan) struct SettingsReader<'a> {
    pub view: View<'a>,
    pub problems: Vec<CellProblem>,
    /// A value is missing where the file is wrong: what follows from it is not known, and not
    /// judged.
    pub is_guessing: bool,
}

impl<'a> SettingsReader<'a> {
    pub fn new(view: View<'a>) -> Self {
        Self {
            view,
            problems: Vec::new(),
            is_guessing: false,
        }
    }
    fn take<T>(&mut self, value: Result<Option<T>, Problem>) -> Option<T> {
        value.unwrap_or_else(|problem| {
            self.push(problem);
            None
        })
    }
    pub fn u64(&mut self, path: &str) -> Option<u64> {
        let value = self.view.u64(path);
        self.take(value)
    }
    pub fn f64(&mut self, path: &str) -> Option<f64> {
        let value = self.view.f64(path);
        self.take(value)
    }
    pub fn bool(&mut self, path: &str) -> Option<bool> {
        let value = self.view.bool(path);
        self.take(value)
    }
    pub fn string(&mut self, path: &str) -> Option<String> {
        let value = self.view.str(path).map(|v| v.map(str::to_owned));
        self.take(value)
    }
    /// A value that is stated or has a built-in default. The one table of defaults is that of
    /// `config::schema`.
    fn set<T: Default>(
        &mut self,
        path: &str,
        get: impl Fn(&View<'_>, &str) -> Result<Option<T>, Problem>,
    ) -> T {
        let value = get(&self.view, path);
        self.take(value).unwrap_or_else(|| {
            if self.view.get(path).is_none() && self.view.is_faulty_around(path) {
                self.is_guessing = true;
            } else if self.view.get(path).is_none() {
                let problem =
                    self.view
                        .problem_at(path, format!("`{path}` is not set"), "needed below here");
                let key = path.rsplit('.').next().unwrap_or(path);
                let help = format!("write `{key}: VALUE`; a null is the same as no line");
                self.push(problem.help(help));
            }
            T::default()
        })
    }
    pub fn flag(&mut self, path: &str) -> bool {
        self.set(path, |view, path| view.bool(path))
    }
    pub fn count(&mut self, path: &str) -> u64 {
        self.set(path, |view, path| view.u64(path))
    }
    pub fn real(&mut self, path: &str) -> f64 {
        self.set(path, |view, path| view.f64(path))
    }
    pub fn word(&mut self, path: &str) -> String {
        self.set(path, |view, path| Ok(view.str(path)?.map(str::to_owned)))
    }
    pub fn positive(&mut self, path: &str) -> u64 {
        let value = self.count(path);
        if value == 0 && self.view.get(path).is_some_and(|v| v.as_f64() == Some(0.0)) {
            self.problem(path, format!("`{path}` must be at least 1"), "is 0");
        }
        value.max(1)
    }
    pub fn push(&mut self, problem: Problem) {
        self.problems.push(CellProblem {
            problem,
            is_of_cell: false,
        });
    }
    pub fn push_of_cell(&mut self, problem: Problem) {
        self.problems.push(CellProblem {
            problem,
            is_of_cell: true,
        });
    }
    pub fn problem(&mut self, path: &str, message: String, label: &str) {
        let problem = self.view.problem_at(path, message, label);
        self.push(problem);
    }
    /// A problem that means nothing without the name of the cell.
    pub fn problem_of_cell(&mut self, path: &str, message: String, label: &str) {
        let problem = self.view.problem_at(path, message, label);
        self.push_of_cell(problem);
    }
}
