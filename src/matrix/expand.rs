//! Multiplies a matrix file out: the product, less what is excluded, plus what is included.

use std::{collections::HashSet, sync::Arc};

use super::{
    cell::{BASE, Cell, Matrix},
    file::MatrixFile,
};
use crate::{
    config::{Config, Setting},
    error::{Problem, Source},
    job::Vendor,
};

/// A matrix with more cells than this is taken for a mistake.
const MAX_CELLS: usize = 1_000_000;

pub(super) fn expand(
    file: MatrixFile,
    source: Arc<Source>,
    config: &Config,
) -> Result<Matrix, Vec<Problem>> {
    let sizes: Vec<usize> = file
        .dimensions
        .iter()
        .map(|dimension| dimension.product_len)
        .collect();
    let total = sizes
        .iter()
        .try_fold(1_usize, |product, size| product.checked_mul(*size));
    let Some(total) = total.filter(|total| *total <= MAX_CELLS) else {
        let message = format!("the matrix has more than {MAX_CELLS} cells");
        return Err(vec![Problem::new(message).at(&source, 0..0, "")]);
    };
    let vendors = file.dimensions[0]
        .values
        .iter()
        .map(|v| config.vendor(&v.name).unwrap_or_default())
        .collect();
    let builder = Builder {
        file: &file,
        vendors,
    };
    let mut cells = Vec::with_capacity(total + file.includes.len());
    let mut excluded = Vec::new();
    let mut point: Vec<Option<usize>> = vec![Some(0); sizes.len()];
    for _ in 0..total {
        match file
            .excludes
            .iter()
            .find(|(place, _)| place.matches(&point))
        {
            Some((_, reason)) => excluded.push((builder.cell(&point), reason.clone())),
            None => cells.push(builder.cell(&point)),
        }
        advance(&mut point, &sizes);
    }
    let mut problems = Vec::new();
    builder.include(&source, &mut cells, &mut excluded, &mut problems);
    if cells.is_empty() && problems.is_empty() {
        const TABLE: &str = "[[exclude]]";
        let start = source.text.find(TABLE).unwrap_or_default();
        let end = source.text.len().min(start + TABLE.len());
        problems.push(
            Problem::new("the matrix has no cells")
                .at(
                    &source,
                    start..end,
                    "excludes every cell, alone or with others",
                )
                .help("narrow `where` of an [[exclude]], or remove it"),
        );
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(Matrix {
        name: file.name,
        across: file.across,
        cells: cells.into(),
        excluded,
    })
}

/// The next point; the last dimension turns fastest.
fn advance(point: &mut [Option<usize>], sizes: &[usize]) {
    for (index, size) in point.iter_mut().zip(sizes).rev() {
        let next = index.map_or(0, |index| index + 1);
        *index = Some(if next < *size { next } else { 0 });
        if next < *size {
            return;
        }
    }
}

struct Builder<'a> {
    file: &'a MatrixFile,
    /// The vendor of each platform.
    vendors: Vec<Vendor>,
}

impl Builder<'_> {
    /// The cell at a point, which has a value on every base dimension.
    fn cell(&self, point: &[Option<usize>]) -> Cell {
        let dimensions = &self.file.dimensions;
        let index = |base: usize| point[base].unwrap_or_default();
        let name = |base: usize| dimensions[base].values[index(base)].name.clone();
        let axes = dimensions.len() - BASE.len();
        let overrides = || {
            self.file
                .overrides
                .iter()
                .filter(|(place, _)| place.matches(point))
        };
        let mut cell = Cell {
            platform: name(0),
            vendor: self.vendors[index(0)],
            framework: name(1),
            model: name(2),
            parallelism: name(3),
            axes: Vec::with_capacity(axes),
            overlay: Vec::with_capacity(
                axes + overrides().map(|(_, set)| set.len()).sum::<usize>(),
            ),
            repeats: self.file.repeats,
        };
        for (dimension, index) in dimensions.iter().zip(point).skip(BASE.len()) {
            let Some(value) = index.map(|index| &dimension.values[index]) else {
                continue;
            };
            cell.axes.push((dimension.name.clone(), value.name.clone()));
            cell.overlay.extend(value.setting.clone());
        }
        for (_, settings) in overrides() {
            settings
                .iter()
                .for_each(|setting| set(&mut cell.overlay, setting));
        }
        cell
    }

    /// Adds the included cells; one that is there already is a problem, one that was excluded no
    /// longer is.
    fn include(
        &self,
        source: &Arc<Source>,
        cells: &mut Vec<Cell>,
        excluded: &mut Vec<(Cell, String)>,
        problems: &mut Vec<Problem>,
    ) {
        if self.file.includes.is_empty() {
            return;
        }
        let mut ids: HashSet<String> = cells.iter().map(ToString::to_string).collect();
        let mut back = HashSet::new();
        for include in &self.file.includes {
            let cell = self.cell(&include.value);
            let id = cell.to_string();
            if ids.insert(id.clone()) {
                back.insert(id);
                cells.push(cell);
            } else {
                let message = format!("[[include]] makes {id}, which is there already");
                problems.push(Problem::new(message).at(
                    source,
                    include.span.clone(),
                    "a second one",
                ));
            }
        }
        excluded.retain(|(cell, _)| !back.contains(&cell.to_string()));
    }
}

/// A later override of the same path wins.
fn set(overlay: &mut Vec<Setting>, setting: &Setting) {
    match overlay.iter_mut().find(|known| known.path == setting.path) {
        Some(known) => *known = setting.clone(),
        None => overlay.push(setting.clone()),
    }
}
