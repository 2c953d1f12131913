//! Matrices in fp8 and their products.

use tch::{Device, Kind, TchError, Tensor};

use super::{
    super::{
        backend::Product,
        kernels,
        operand::{self, Format, Operand, Scaled},
    },
    BF16, Checks, FP32, leaf,
};

/// Tensor cores add products of fp8 up with fewer bits than fp32 has.
const FP8_SUM: f64 = 2e-3;

impl Checks<'_> {
    pub(super) fn quantize(&mut self, rows: i64, cols: i64) -> Result<(), TchError> {
        let matrix = self.noting(self.random(&[rows, cols])?.f_mul_scalar(3.0)?)?;
        let noted = matrix
            .largest
            .as_ref()
            .map_or_else(|| operand::slot(self.backend), |t| Ok(t.shallow_clone()))?;
        kernels::largest(self.backend, &matrix.values, &noted)?;
        self.expect_largest("largest", &matrix)?;
        for (format, most) in [(Format::E4m3, 448.0_f32), (Format::E5m2, 57344.0)] {
            let scaled = Scaled::of(self.backend, &matrix, format)?;
            let values = matrix
                .values
                .f_to_device(Device::Cpu)?
                .f_to_kind(Kind::Float)?;
            let scale = most / values.f_abs()?.f_max()?.f_double_value(&[])? as f32;
            let wanted = values
                .f_mul(&Tensor::from(scale))?
                .f_to_kind(format.kind())?
                .f_to_kind(Kind::Double)?;
            let wide = |t: &Tensor| t.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float);
            // libtorch rounds the same way, so nothing may differ.
            let name = format.name();
            if let Some(by_row) = &scaled.by_row {
                self.expect(&format!("{name}, by row"), &wide(by_row)?, &wanted, 1e-9)?;
            }
            self.expect(
                &format!("{name}, by column"),
                &wide(&scaled.by_column)?.f_tr()?,
                &wanted,
                1e-9,
            )?;
            self.expect(
                &format!("{name}, inverse"),
                &scaled.inverse,
                &Tensor::from_slice(&[1.0 / scale]),
                FP32,
            )?;
        }
        Ok(())
    }

    /// A random matrix in fp8, and what it stands for, exactly.
    fn scaled(&self, rows: i64, cols: i64, format: Format) -> Result<(Operand, Tensor), TchError> {
        let matrix = operand::measured(self.backend, self.random(&[rows, cols])?)?;
        let scaled = Scaled::of(self.backend, &matrix, format)?;
        let columns = scaled
            .by_column
            .f_to_device(Device::Cpu)?
            .f_to_kind(Kind::Float)?
            .f_to_kind(Kind::Double)?;
        let wide = columns.f_tr()?.f_mul(&leaf(&scaled.inverse)?.f_detach()?)?;
        Ok((Operand::Scaled(scaled), wide))
    }

    /// The three products of a linear layer whose factors are in fp8.
    pub(super) fn products_of_fp8(
        &mut self,
        rows: i64,
        inner: i64,
        outputs: i64,
    ) -> Result<(), TchError> {
        let backend = self.backend;
        let (x, x64) = self.scaled(rows, inner, Format::E4m3)?;
        let (w, w64) = self.scaled(outputs, inner, Format::E4m3)?;
        for format in [Format::E4m3, Format::E5m2] {
            let (dy, dy64) = self.scaled(rows, outputs, format)?;
            let name =
                |product: &str| format!("product in fp8, {product}, dy in {}", format.name());
            let (y, dx) = (
                self.poisoned(&[rows, outputs], Kind::BFloat16)?,
                self.poisoned(&[rows, inner], Kind::BFloat16)?,
            );
            let (bias, add) = (self.random(&[outputs])?, self.random(&[rows, outputs])?);
            let plain = operand::forward(&x, &w, &y)?;
            backend.product(&Product {
                bias: Some(&bias),
                ..plain
            })?;
            let y64 = x64.f_matmul(&w64.f_tr()?)?;
            self.expect(&name("y"), &y, &y64.f_add(&leaf(&bias)?.f_detach()?)?, BF16)?;
            backend.product(&Product {
                add: Some(&add),
                ..operand::forward(&x, &w, &y)?
            })?;
            self.expect(
                &name("y onto another matrix"),
                &y,
                &y64.f_add(&leaf(&add)?.f_detach()?)?,
                BF16,
            )?;
            backend.product(&operand::input(&dy, &w, &dx)?)?;
            self.expect(&name("dx"), &dx, &dy64.f_matmul(&w64)?, BF16)?;
            let dw64 = dy64.f_tr()?.f_matmul(&x64)?;
            for kind in [Kind::Float, Kind::BFloat16] {
                let dw = self.poisoned(&[outputs, inner], kind)?;
                backend.product(&operand::weight(&dy, &x, &dw, false)?)?;
                backend.product(&operand::weight(&dy, &x, &dw, true)?)?;
                let limit = if kind == Kind::Float {
                    FP8_SUM
                } else {
                    2.0 * BF16
                };
                self.expect(
                    &name(&format!("dw twice, {kind:?}")),
                    &dw,
                    &dw64.f_mul_scalar(2.0)?,
                    limit,
                )?;
            }
        }
        Ok(())
    }
}
