//! What products read: bf16 matrices, or matrices scaled to fp8, and the three products of a linear
//! layer over them.
//!
//! In fp8 every product is a `left·rightᵀ` ([`Layout::Forward`]), because tensor cores read both
//! factors along the sum. So each matrix is scaled once and written twice, by rows and by columns.

use tch::{Kind, TchError, Tensor};

use super::{
    backend::{Backend, Layout, Product},
    driver::failure,
    kernels,
};

/// A bf16 matrix that a kernel writes, and where the kernel notes the largest magnitude, if
/// somebody wants to know it.
pub struct Matrix {
    pub values: Tensor,
    /// The bits of an fp32 number, 0 before the kernel ran.
    pub largest: Option<Tensor>,
}

impl Matrix {
    pub fn plain(values: Tensor) -> Self {
        Self {
            values,
            largest: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    E4m3,
    E5m2,
}

impl Format {
    pub fn kind(self) -> Kind {
        match self {
            Self::E4m3 => Kind::Float8e4m3fn,
            Self::E5m2 => Kind::Float8e5m2,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::E4m3 => "e4m3",
            Self::E5m2 => "e5m2",
        }
    }

    pub fn is_of(kind: Kind) -> bool {
        matches!(kind, Kind::Float8e4m3fn | Kind::Float8e5m2)
    }
}

/// Which fp8 formats a run uses: one for weights and activations, one for gradients.
#[derive(Clone, Copy, Debug)]
pub struct Fp8 {
    pub forward: Format,
    pub gradients: Format,
}

/// A matrix in fp8. One factor scales all of it; it was chosen so that the largest magnitude is the
/// format's largest.
pub struct Scaled {
    /// `[rows, cols]`; given up after the products that sum along a row.
    pub by_row: Option<Tensor>,
    /// `[cols, rows]`.
    pub by_column: Tensor,
    /// fp32 scalar: a value is its fp8 times this.
    pub inverse: Tensor,
}

impl Scaled {
    pub fn empty(
        backend: &dyn Backend,
        rows: i64,
        cols: i64,
        format: Format,
    ) -> Result<Self, TchError> {
        let empty = |size, kind| Tensor::f_empty(size, (kind, backend.device()));
        Ok(Self {
            by_row: Some(empty([rows, cols], format.kind())?),
            by_column: empty([cols, rows], format.kind())?,
            inverse: Tensor::f_empty([1], (Kind::Float, backend.device()))?,
        })
    }

    pub fn of(backend: &dyn Backend, matrix: &Matrix, format: Format) -> Result<Self, TchError> {
        let (rows, cols) = matrix.values.size2()?;
        let scaled = Self::empty(backend, rows, cols, format)?;
        kernels::quantize(backend, matrix, &scaled)?;
        Ok(scaled)
    }

    fn by_row(&self) -> Result<&Tensor, TchError> {
        self.by_row
            .as_ref()
            .ok_or_else(|| failure("a product reads rows that were given up".to_owned()))
    }
}

pub enum Operand {
    Plain(Tensor),
    Scaled(Scaled),
}

impl Operand {
    fn shallow_clone(&self) -> Self {
        match self {
            Self::Plain(values) => Self::Plain(values.shallow_clone()),
            Self::Scaled(Scaled {
                by_row,
                by_column,
                inverse,
            }) => Self::Scaled(Scaled {
                by_row: by_row.as_ref().map(Tensor::shallow_clone),
                by_column: by_column.shallow_clone(),
                inverse: inverse.shallow_clone(),
            }),
        }
    }

    /// After the forward product: only the transpose is read again.
    pub fn forget_rows(&mut self) {
        if let Self::Scaled(scaled) = self {
            scaled.by_row = None;
        }
    }
}

/// A parameter, or neighbouring ones joined, with the gradient that is accumulated for it.
pub struct Weight {
    pub value: Tensor,
    pub gradient: Tensor,
    /// What products read; of a norm or an embedding, the value itself.
    pub operand: Operand,
}

impl Weight {
    pub fn plain(value: Tensor, gradient: Tensor) -> Self {
        Self {
            operand: Operand::Plain(value.shallow_clone()),
            value,
            gradient,
        }
    }

    /// A weight whose products are computed in `format`; [`Self::refresh`] writes the operand.
    pub fn scaled(backend: &dyn Backend, weight: Self, format: Format) -> Result<Self, TchError> {
        let (rows, cols) = weight.value.size2()?;
        Ok(Self {
            operand: Operand::Scaled(Scaled::empty(backend, rows, cols, format)?),
            ..weight
        })
    }

    /// A weight whose products read the same memory as those of `twin`, in turns.
    pub fn beside(self, twin: &Self) -> Self {
        Self {
            operand: twin.operand.shallow_clone(),
            ..self
        }
    }

    /// Call after the value was written.
    pub fn refresh(&self, backend: &dyn Backend) -> Result<(), TchError> {
        let Operand::Scaled(scaled) = &self.operand else {
            return Ok(());
        };
        let matrix = measured(backend, self.value.shallow_clone())?;
        kernels::quantize(backend, &matrix, scaled)
    }
}

/// A matrix that was written by somebody who noted no largest magnitude.
pub fn measured(backend: &dyn Backend, values: Tensor) -> Result<Matrix, TchError> {
    let largest = slot(backend)?;
    kernels::largest(backend, &values, &largest)?;
    Ok(Matrix {
        values,
        largest: Some(largest),
    })
}

pub fn slot(backend: &dyn Backend) -> Result<Tensor, TchError> {
    Tensor::f_zeros([1], (Kind::Int, backend.device()))
}

fn product<'a>(
    layout: Layout,
    left: &'a Tensor,
    right: &'a Tensor,
    out: &'a Tensor,
) -> Product<'a> {
    Product {
        layout,
        left,
        right,
        out,
        add: None,
        bias: None,
        scales: None,
    }
}

fn mixed<T>() -> Result<T, TchError> {
    Err(failure(
        "a product has one factor in fp8 and one in bf16".to_owned(),
    ))
}

/// y = x·wᵀ.
pub fn forward<'a>(x: &'a Operand, w: &'a Operand, y: &'a Tensor) -> Result<Product<'a>, TchError> {
    match (x, w) {
        (Operand::Plain(x), Operand::Plain(w)) => Ok(product(Layout::Forward, x, w, y)),
        (Operand::Scaled(x), Operand::Scaled(w)) => {
            let scales = Some([&x.inverse, &w.inverse]);
            Ok(Product {
                scales,
                ..product(Layout::Forward, x.by_row()?, w.by_row()?, y)
            })
        }
        _ => mixed(),
    }
}

/// dx = dy·w.
pub fn input<'a>(dy: &'a Operand, w: &'a Operand, dx: &'a Tensor) -> Result<Product<'a>, TchError> {
    match (dy, w) {
        (Operand::Plain(dy), Operand::Plain(w)) => Ok(product(Layout::Input, dy, w, dx)),
        (Operand::Scaled(dy), Operand::Scaled(w)) => {
            let scales = Some([&dy.inverse, &w.inverse]);
            Ok(Product {
                scales,
                ..product(Layout::Forward, dy.by_row()?, &w.by_column, dx)
            })
        }
        _ => mixed(),
    }
}

/// dw = dyᵀ·x, added to what is there if `accumulate` is set.
pub fn weight<'a>(
    dy: &'a Operand,
    x: &'a Operand,
    dw: &'a Tensor,
    accumulate: bool,
) -> Result<Product<'a>, TchError> {
    let add = accumulate.then_some(dw);
    match (dy, x) {
        (Operand::Plain(dy), Operand::Plain(x)) => Ok(Product {
            add,
            ..product(Layout::Weight, dy, x, dw)
        }),
        (Operand::Scaled(dy), Operand::Scaled(x)) => {
            let scales = Some([&dy.inverse, &x.inverse]);
            Ok(Product {
                add,
                scales,
                ..product(Layout::Forward, &dy.by_column, &x.by_column, dw)
            })
        }
        _ => mixed(),
    }
}

/// Activations of one linear layer, for timing its products with its weight.
pub struct Scratch<'a> {
    x: Operand,
    dy: Operand,
    dx: Tensor,
    y: Tensor,
    weight: &'a Weight,
}

impl<'a> Scratch<'a> {
    pub fn new(
        backend: &dyn Backend,
        rows: i64,
        weight: &'a Weight,
        fp8: Option<Fp8>,
    ) -> Result<Self, TchError> {
        let (outputs, inner) = weight.value.size2()?;
        let random = |cols| Tensor::f_randn([rows, cols], (Kind::BFloat16, backend.device()));
        let operand = |values, format: Option<Format>| {
            Ok::<_, TchError>(match format {
                Some(format) => {
                    Operand::Scaled(Scaled::of(backend, &measured(backend, values)?, format)?)
                }
                None => Operand::Plain(values),
            })
        };
        let fp8 = matches!(weight.operand, Operand::Scaled(_))
            .then_some(fp8)
            .flatten();
        weight.refresh(backend)?;
        Ok(Self {
            x: operand(random(inner)?, fp8.map(|fp8| fp8.forward))?,
            dy: operand(random(outputs)?, fp8.map(|fp8| fp8.gradients))?,
            dx: random(inner)?,
            y: random(outputs)?,
            weight,
        })
    }

    /// y, dx and dw. The last one adds to the weight's gradient, which has no meaning afterwards.
    pub fn products(&self) -> Result<[Product<'_>; 3], TchError> {
        let Self {
            x,
            dy,
            dx,
            y,
            weight: Weight {
                operand, gradient, ..
            },
        } = self;
        Ok([
            forward(x, operand, y)?,
            input(dy, operand, dx)?,
            weight(dy, x, gradient, true)?,
        ])
    }
}
