//! Cells by their place in the matrix. What people write and read are names (`Cell`'s display).

use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
use std::ops::{Deref, DerefMut, Index, IndexMut};

/// A cell of the matrix: its place in it, and in everything that holds one value per cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellId(usize);

impl CellId {
    /// Counted from 0, in the order of the matrix.
    #[must_use]
    pub fn place(self) -> usize {
        self.0
    }
}

#[cfg(test)]
impl From<usize> for CellId {
    fn from(place: usize) -> Self {
        Self(place)
    }
}

/// One `T` for each cell of a matrix.
#[derive(Clone, Debug)]
pub struct PerCell<T>(Vec<T>);

impl<T> PerCell<T> {
    #[must_use]
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = CellId> + ExactSizeIterator + use<T> {
        (0..self.0.len()).map(CellId)
    }

    /// The same, on all cores.
    #[must_use]
    pub fn par_ids(&self) -> impl IndexedParallelIterator<Item = CellId> + use<T> {
        (0..self.0.len()).into_par_iter().map(CellId)
    }

    pub fn with_ids(&self) -> impl DoubleEndedIterator<Item = (CellId, &T)> + ExactSizeIterator {
        self.0.iter().enumerate().map(|(at, one)| (CellId(at), one))
    }

    pub fn into_with_ids(self) -> impl Iterator<Item = (CellId, T)> {
        let cells = self.0.into_iter().enumerate();
        cells.map(|(at, one)| (CellId(at), one))
    }

    /// Both of each cell.
    pub fn zip<U>(self, other: PerCell<U>) -> PerCell<(T, U)> {
        self.into_iter().zip(other).collect()
    }

    pub fn with_ids_mut(&mut self) -> impl Iterator<Item = (CellId, &mut T)> {
        let cells = self.0.iter_mut().enumerate();
        cells.map(|(at, one)| (CellId(at), one))
    }

    #[must_use]
    pub fn map<U>(&self, make: impl FnMut(CellId) -> U) -> PerCell<U> {
        self.ids().map(make).collect()
    }
}

impl<T> IntoIterator for PerCell<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<T> Default for PerCell<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> From<Vec<T>> for PerCell<T> {
    fn from(all: Vec<T>) -> Self {
        Self(all)
    }
}

impl<T> FromIterator<T> for PerCell<T> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        Self(all.into_iter().collect())
    }
}

impl<T> Index<CellId> for PerCell<T> {
    type Output = T;
    fn index(&self, cell: CellId) -> &T {
        &self.0[cell.0]
    }
}

impl<T> IndexMut<CellId> for PerCell<T> {
    fn index_mut(&mut self, cell: CellId) -> &mut T {
        &mut self.0[cell.0]
    }
}

impl<T> Deref for PerCell<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for PerCell<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<'a, T> IntoIterator for &'a PerCell<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}
