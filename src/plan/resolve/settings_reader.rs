//! Reads the settings of a cell and gathers what is wrong with them, so that one pass reports all of
//! it.

use crate::{
    config::{Entry, Section, View},
    error::Problem,
};

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
    /// A value is missing, or wrong in the file: what follows from it is not known, and not judged.
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
    /// A section as the cell sees it.
    pub fn section<T: Section>(&mut self) -> T {
        self.is_guessing |= self.view.is_guessed(T::PATH);
        self.view.section()
    }
    /// What an id has in its table, as the cell sees it.
    pub fn entry<T: Entry>(&mut self, id: &str) -> T {
        self.is_guessing |= self.view.is_guessed(&format!("{}.{id}", T::TABLE));
        self.view.entry(id)
    }
    /// A value without a default that every cell needs; `path` is where it would stand.
    pub fn needed<T: Default>(&mut self, value: Option<T>, path: &str) -> T {
        value.unwrap_or_else(|| {
            self.is_guessing = true;
            if !self.view.is_faulty_around(path) {
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
