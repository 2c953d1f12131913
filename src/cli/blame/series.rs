//! What a cell can be measured at, one after the other: the commits of a repository, the versions of a package.

use std::sync::Arc;

use super::{
    commits::{Repository, short},
    differences::{Difference, What},
    versions::Package,
};
use crate::figures::{ChangedSetting, blame::Arm};

/// What to do about an end of a range that does not run.
pub const BOTH_RUN: &str = "name a range whose two ends run";

pub enum Series {
    Commits(Repository),
    Versions(Package),
}

impl Series {
    /// `at 1f2e3d4c5b`, `with numpy 2.0.1`
    pub fn at(&self, point: &str) -> String {
        match self {
            Self::Commits(_) => format!("at {}", short(point)),
            Self::Versions(of) => format!("with {} {point}", of.name),
        }
    }

    /// What tells the cells of the arms apart.
    pub fn axis(&self, point: &str) -> (Arc<str>, Arc<str>) {
        match self {
            Self::Commits(_) => ("commit".into(), short(point).into()),
            Self::Versions(of) => (of.name.as_str().into(), point.into()),
        }
    }
}

/// Each point of a series with what is told of it, as a difference from the one before.
pub fn differences(
    of: Series,
    mut before: String,
    points: impl Iterator<Item = (String, [String; 2])>,
) -> Vec<Difference> {
    let of = Arc::new(of);
    let one = |(point, [what, how]): (String, [String; 2])| Difference {
        told: ChangedSetting {
            what,
            how: Some(how),
            old: None,
            new: None,
        },
        what: What::Next {
            of: of.clone(),
            before: std::mem::replace(&mut before, point.clone()),
            point,
        },
        undoes: None,
    };
    points.map(one).collect()
}

/// What an arm is measured at, where its differences are those of a series.
pub fn point_of<'a>(differences: &'a [Difference], arm: &Arm) -> Option<(&'a Series, &'a str)> {
    let at = arm.last().copied().unwrap_or_default();
    match &differences.get(at)?.what {
        What::Next { of, before, point } => Some((of, if arm.is_empty() { before } else { point })),
        _ => None,
    }
}
