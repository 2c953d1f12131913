//! One safe function for each kernel: checks kinds, sizes and alignment, chooses the grid,
//! launches.

use tch::{Kind, TchError, Tensor};

use super::{
    arguments::Arguments,
    backend::Backend,
    driver::failure,
    operand::{Format, Matrix, Scaled},
};

/// Columns that the threads of a block own together in the norms: 512 threads, at most two groups
/// of eight each.
pub const WIDEST_NORM: i64 = 2 * 8 * 512;
/// Blocks a multiprocessor of a kernel that sums over rows.
const BLOCKS: u32 = 4;
/// Threads that RMSNorm's backward pass has room for on a multiprocessor; more blocks would run
/// after the others.
const RESIDENT: u32 = 1024;
/// Bytes of static shared memory that cross entropy uses itself, and a little for the driver.
const STATIC_SHARED: u32 = 10 << 10;

/// The settings of one update, in the layout that kernels/update.cu declares.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AdamW {
    pub decay: f32,
    pub step_size: f32,
    pub root_scale: f32,
    pub beta1: f32,
    pub beta2: f32,
    pub eps: f32,
    pub clip: f32,
    pub seed: u32,
}

/// The flat buffers of one update; all of one length and, but for `values`, of one kind.
pub struct Update<'a> {
    pub masters: &'a Tensor,
    pub values: &'a Tensor,
    pub gradients: &'a Tensor,
    pub first: &'a Tensor,
    pub second: &'a Tensor,
    pub norm: &'a Tensor,
}

/// Where the gradient of the embedding's rows comes from: positions sorted by token.
pub struct Segments {
    pub order: Tensor,
    pub starts: Tensor,
    pub tokens: Tensor,
}

fn require(condition: bool, kernel: &str, tensors: &[&Tensor]) -> Result<(), TchError> {
    let aligned = tensors
        .iter()
        .all(|t| t.is_contiguous() && (t.data_ptr() as usize).is_multiple_of(16));
    match condition && aligned {
        true => Ok(()),
        false => {
            let sizes: Vec<_> = tensors.iter().map(|t| (t.size(), t.kind())).collect();
            Err(failure(format!("{kernel} cannot take {sizes:?}")))
        }
    }
}

fn is(tensor: &Tensor, kind: Kind, size: &[i64]) -> bool {
    tensor.kind() == kind && tensor.size() == size
}

fn is_state(kind: Kind) -> bool {
    matches!(kind, Kind::Float | Kind::BFloat16)
}

/// Threads for a row of `cols` values that are read eight at a time.
fn threads(cols: i64, most: u32) -> u32 {
    (cols as u32)
        .div_ceil(8)
        .next_multiple_of(32)
        .clamp(32, most)
}

fn bf16_flag(tensor: &Tensor) -> i64 {
    i64::from(tensor.kind() == Kind::BFloat16)
}

fn is_slot(largest: &Tensor) -> bool {
    is(largest, Kind::Int, &[1])
}

/// Notes the largest magnitude of `values` in `largest`, if it is larger than what is there.
pub fn largest(backend: &dyn Backend, values: &Tensor, largest: &Tensor) -> Result<(), TchError> {
    let count = values.numel() as i64;
    let fits = values.kind() == Kind::BFloat16 && count % 8 == 0 && is_slot(largest);
    require(fits, "largest", &[values])?;
    let blocks =
        (backend.multiprocessors() * BLOCKS).min((count as u64).div_ceil(8 * 512).max(1) as u32);
    let arguments = Arguments::default()
        .tensor(values)
        .tensor(largest)
        .long(count / 8);
    arguments.launch(backend, "largest", [blocks, 1], 512, 0)
}

/// Writes `matrix` in fp8, by rows and by columns, and the factor that gives its values back.
/// Somebody must have noted its largest magnitude.
pub fn quantize(backend: &dyn Backend, matrix: &Matrix, scaled: &Scaled) -> Result<(), TchError> {
    let (rows, cols) = matrix.values.size2()?;
    let Scaled {
        by_row,
        by_column,
        inverse,
    } = scaled;
    let (Some(largest), Some(by_row)) = (&matrix.largest, by_row) else {
        return Err(failure(
            "quantize lacks the largest magnitude, or rows to write".to_owned(),
        ));
    };
    let kind = by_row.kind();
    let fits = is(&matrix.values, Kind::BFloat16, &[rows, cols])
        && is(by_row, kind, &[rows, cols])
        && is(by_column, kind, &[cols, rows])
        && is(inverse, Kind::Float, &[1])
        && is_slot(largest)
        && Format::is_of(kind)
        && rows % 8 == 0
        && cols % 8 == 0;
    let kernel = if kind == Format::E4m3.kind() {
        "quantize_e4m3"
    } else {
        "quantize_e5m2"
    };
    require(fits, kernel, &[&matrix.values, by_row, by_column])?;
    Arguments::default()
        .tensor(&matrix.values)
        .tensor(largest)
        .tensor(by_row)
        .tensor(by_column)
        .tensor(inverse)
        .int(rows)
        .int(cols)
        .launch(
            backend,
            kernel,
            [(cols as u32).div_ceil(128), (rows as u32).div_ceil(128)],
            256,
            0,
        )
}

/// Writes the normalised rows of `x` to `out` and each row's scale to `scales`.
pub fn rms_norm(
    backend: &dyn Backend,
    x: &Tensor,
    weight: &Tensor,
    out: &Matrix,
    scales: &Tensor,
    eps: f64,
) -> Result<(), TchError> {
    let (rows, cols) = x.size2()?;
    let y = &out.values;
    let fits = is(x, Kind::BFloat16, &[rows, cols])
        && is(y, Kind::BFloat16, &[rows, cols])
        && is(weight, Kind::BFloat16, &[cols])
        && is(scales, Kind::Float, &[rows])
        && out.largest.as_ref().is_none_or(is_slot);
    let (kernel, threads) = if cols <= WIDEST_NORM / 2 {
        ("rms_norm_1", threads(cols, 512))
    } else {
        ("rms_norm_2", threads((cols + 1) / 2, 512))
    };
    require(
        fits && cols % 8 == 0 && cols <= WIDEST_NORM,
        kernel,
        &[x, weight, y, scales],
    )?;
    Arguments::default()
        .tensor(x)
        .tensor(weight)
        .tensor(y)
        .tensor(scales)
        .optional(out.largest.as_ref())
        .int(cols)
        .float(eps)
        .launch(backend, kernel, [rows as u32, 1], threads, 0)
}

/// The inputs of RMSNorm's backward pass.
pub struct Norm<'a> {
    pub x: &'a Tensor,
    pub weight: &'a Tensor,
    pub scales: &'a Tensor,
    /// Whether the normalised rows are made again, over the gradient by them.
    pub restores: bool,
}

/// Writes residual + the gradient of `norm.x` to `out`, and puts or adds the weight's gradient into
/// `dw`.
pub fn rms_norm_backward(
    backend: &dyn Backend,
    norm: &Norm,
    dy: &Tensor,
    residual: Option<&Tensor>,
    out: &Matrix,
    dw: &Tensor,
    accumulate: bool,
) -> Result<(), TchError> {
    let (rows, cols) = norm.x.size2()?;
    let dx = &out.values;
    let row = |t: &Tensor| is(t, Kind::BFloat16, &[rows, cols]);
    let fits = [norm.x, dy, dx].into_iter().all(row)
        && residual.is_none_or(row)
        && is(norm.weight, Kind::BFloat16, &[cols])
        && is(norm.scales, Kind::Float, &[rows])
        && is_state(dw.kind())
        && dw.size() == [cols]
        && out.largest.as_ref().is_none_or(is_slot);
    let (kernel, threads) = if cols <= WIDEST_NORM / 2 {
        ("rms_norm_backward_1", threads(cols, 512))
    } else {
        ("rms_norm_backward_2", threads((cols + 1) / 2, 512))
    };
    require(
        fits && cols % 8 == 0 && cols <= WIDEST_NORM,
        kernel,
        &[norm.x, norm.weight, dy, dx, dw],
    )?;
    let blocks = (backend.multiprocessors() * (RESIDENT / threads).max(1)).min(rows as u32);
    let partial = Tensor::f_empty([i64::from(blocks), cols], (Kind::Float, backend.device()))?;
    Arguments::default()
        .tensor(norm.x)
        .tensor(norm.weight)
        .tensor(norm.scales)
        .tensor(dy)
        .optional(residual)
        .tensor(dx)
        .optional(norm.restores.then_some(dy))
        .tensor(&partial)
        .optional(out.largest.as_ref())
        .int(rows)
        .int(cols)
        .launch(backend, kernel, [blocks, 1], threads, 0)?;
    column_sums(backend, &partial, dw, accumulate)
}

fn column_sums(
    backend: &dyn Backend,
    partial: &Tensor,
    out: &Tensor,
    accumulate: bool,
) -> Result<(), TchError> {
    let (rows, cols) = partial.size2()?;
    require(
        out.size() == [cols] && is_state(out.kind()),
        "column_sums",
        &[partial],
    )?;
    Arguments::default()
        .tensor(partial)
        .tensor(out)
        .int(rows)
        .int(cols)
        .int(bf16_flag(out))
        .int(i64::from(accumulate))
        .launch(
            backend,
            "column_sums",
            [(cols as u32).div_ceil(32), 1],
            1024,
            0,
        )
}

/// Puts or adds the sum of `dy`'s rows into `gradient`.
pub fn bias_backward(
    backend: &dyn Backend,
    dy: &Tensor,
    gradient: &Tensor,
    accumulate: bool,
) -> Result<(), TchError> {
    let (rows, cols) = dy.size2()?;
    require(
        is(dy, Kind::BFloat16, &[rows, cols]) && cols % 8 == 0,
        "bias_partials",
        &[dy],
    )?;
    let across = (cols as u32).div_ceil(8 * 256);
    let down = (backend.multiprocessors() * BLOCKS).min(rows as u32);
    let partial = Tensor::f_empty([i64::from(down), cols], (Kind::Float, backend.device()))?;
    let arguments = Arguments::default()
        .tensor(dy)
        .tensor(&partial)
        .int(rows)
        .int(cols);
    arguments.launch(backend, "bias_partials", [across, down], 256, 0)?;
    column_sums(backend, &partial, gradient, accumulate)
}

/// Angles of the rotary embedding, fp32, `[length, head_dim / 2]` each.
pub struct Angles {
    pub cosines: Tensor,
    pub sines: Tensor,
}

impl Angles {
    fn length(&self) -> i64 {
        self.cosines.size()[0]
    }

    fn half(&self) -> i64 {
        self.cosines.size()[1]
    }

    fn fits(&self, rows: i64) -> bool {
        let size = [self.length(), self.half()];
        is(&self.cosines, Kind::Float, &size)
            && is(&self.sines, Kind::Float, &size)
            && self.half() % 8 == 0
            && rows % self.length() == 0
    }
}

/// Rotates the query and key heads of `qkv`, whose rows are q, k and v of one token.
pub fn rope(
    backend: &dyn Backend,
    qkv: &Tensor,
    angles: &Angles,
    heads: i64,
    kv_heads: i64,
) -> Result<(), TchError> {
    let (rows, width) = qkv.size2()?;
    let fits = is(
        qkv,
        Kind::BFloat16,
        &[rows, (heads + 2 * kv_heads) * 2 * angles.half()],
    ) && angles.fits(rows);
    require(fits, "rope", &[qkv, &angles.cosines, &angles.sines])?;
    Arguments::default()
        .tensor(qkv)
        .tensor(&angles.cosines)
        .tensor(&angles.sines)
        .int(angles.length())
        .int(heads + kv_heads)
        .int(angles.half())
        .int(width)
        .launch(
            backend,
            "rope",
            [rows as u32, 1],
            threads((heads + kv_heads) * angles.half(), 512),
            0,
        )
}

/// Turns the gradients of q and k back and joins them with that of v in `out`.
pub fn rope_backward(
    backend: &dyn Backend,
    gradients: &[Tensor; 3],
    angles: &Angles,
    out: &Matrix,
) -> Result<(), TchError> {
    let dqkv = &out.values;
    let (rows, width) = dqkv.size2()?;
    let [dq, dk, dv] = gradients;
    let size = 2 * angles.half();
    let (heads, kv_heads) = (
        dq.numel() as i64 / (rows * size),
        dk.numel() as i64 / (rows * size),
    );
    let fits = angles.fits(rows)
        && width == (heads + 2 * kv_heads) * size
        && dv.numel() == dk.numel()
        && out.largest.as_ref().is_none_or(is_slot)
        && [dq, dk, dv, dqkv]
            .iter()
            .all(|t| t.kind() == Kind::BFloat16);
    require(
        fits,
        "rope_backward",
        &[dq, dk, dv, dqkv, &angles.cosines, &angles.sines],
    )?;
    Arguments::default()
        .tensor(dq)
        .tensor(dk)
        .tensor(dv)
        .tensor(dqkv)
        .optional(out.largest.as_ref())
        .tensor(&angles.cosines)
        .tensor(&angles.sines)
        .int(angles.length())
        .int(heads)
        .int(kv_heads)
        .int(angles.half())
        .launch(
            backend,
            "rope_backward",
            [rows as u32, 1],
            threads((heads + kv_heads) * angles.half(), 512),
            0,
        )
}

/// out = silu(gate) · up, for rows that hold gate and then up.
pub fn swiglu(backend: &dyn Backend, gate_up: &Tensor, result: &Matrix) -> Result<(), TchError> {
    let Matrix {
        values: out,
        largest,
    } = result;
    let (rows, cols) = out.size2()?;
    let fits =
        is(out, Kind::BFloat16, &[rows, cols]) && is(gate_up, Kind::BFloat16, &[rows, 2 * cols]);
    let fits = fits && cols % 8 == 0 && largest.as_ref().is_none_or(is_slot);
    require(fits, "swiglu", &[gate_up, out])?;
    let arguments = Arguments::default()
        .tensor(gate_up)
        .tensor(out)
        .optional(largest.as_ref())
        .int(cols);
    arguments.launch(backend, "swiglu", [rows as u32, 1], threads(cols, 512), 0)
}

/// Writes the gradients of gate and up over `both`, which holds their values, and over `d_out` what
/// [`swiglu`] made of them, if `restores` is set.
pub fn swiglu_backward(
    backend: &dyn Backend,
    both: &Matrix,
    d_out: &Tensor,
    restores: bool,
) -> Result<(), TchError> {
    let Matrix {
        values: gate_up,
        largest,
    } = both;
    let (rows, cols) = d_out.size2()?;
    let fits =
        is(d_out, Kind::BFloat16, &[rows, cols]) && is(gate_up, Kind::BFloat16, &[rows, 2 * cols]);
    let fits = fits && cols % 8 == 0 && largest.as_ref().is_none_or(is_slot);
    require(fits, "swiglu_backward", &[gate_up, d_out])?;
    let out = restores.then_some(d_out);
    let arguments = Arguments::default()
        .tensor(gate_up)
        .tensor(d_out)
        .optional(out);
    let arguments = arguments.optional(largest.as_ref()).int(cols);
    arguments.launch(
        backend,
        "swiglu_backward",
        [rows as u32, 1],
        threads(cols, 512),
        0,
    )
}

/// Writes each row's loss times `weight` to `losses`, and its gradient over the logits.
pub fn cross_entropy(
    backend: &dyn Backend,
    logits: &Tensor,
    targets: &Tensor,
    losses: &Tensor,
    weight: f64,
) -> Result<(), TchError> {
    let (rows, vocabulary) = logits.size2()?;
    let fits = is(logits, Kind::BFloat16, &[rows, vocabulary])
        && is(targets, Kind::Int64, &[rows])
        && is(losses, Kind::Float, &[rows])
        && targets.is_contiguous()
        && losses.is_contiguous();
    require(fits && vocabulary % 8 == 0, "cross_entropy", &[logits])?;
    // Half of a multiprocessor's memory: while one block waits for its row, another one writes.
    let room = (backend.shared_memory() / 2).saturating_sub(STATIC_SHARED) / 16;
    let cached = room.min(vocabulary as u32 / 8);
    Arguments::default()
        .tensor(logits)
        .tensor(targets)
        .tensor(losses)
        .int(vocabulary)
        .int(i64::from(cached))
        .float(weight)
        .launch(
            backend,
            "cross_entropy",
            [rows as u32, 1],
            threads(vocabulary, 768),
            cached * 16,
        )
}

/// Adds the gradient of each position to its token's row of the matrix whose elements from `first`
/// on are in `gradient`; rows that are not there are left out.
pub fn embedding_backward(
    backend: &dyn Backend,
    dx: &Tensor,
    segments: &Segments,
    gradient: &Tensor,
    first: i64,
) -> Result<(), TchError> {
    let (rows, cols) = dx.size2()?;
    let elements = gradient.numel() as i64;
    let Segments {
        order,
        starts,
        tokens,
    } = segments;
    let count = tokens.size()[0];
    let fits = is(dx, Kind::BFloat16, &[rows, cols])
        && order.kind() == Kind::Int
        && order.numel() as i64 <= rows
        && is(starts, Kind::Int, &[count + 1])
        && is(tokens, Kind::Int, &[count])
        && is_state(gradient.kind());
    let is_aligned = [cols, first, elements].iter().all(|n| n % 8 == 0);
    require(fits && is_aligned, "embedding_backward", &[dx, gradient])?;
    if count == 0 {
        return Ok(());
    }
    Arguments::default()
        .tensor(dx)
        .tensor(order)
        .tensor(starts)
        .tensor(tokens)
        .tensor(gradient)
        .int(cols)
        .int(bf16_flag(gradient))
        .long(first)
        .long(elements)
        .launch(
            backend,
            "embedding_backward",
            [count as u32, (cols as u32).div_ceil(256)],
            256,
            0,
        )
}

/// Sums of squares of parts of a flat buffer, one a block.
pub fn squares(backend: &dyn Backend, gradients: &Tensor) -> Result<Tensor, TchError> {
    let count = gradients.numel() as i64;
    require(
        is_state(gradients.kind()) && count % 8 == 0,
        "squares",
        &[gradients],
    )?;
    let blocks = backend.multiprocessors() * 4;
    let partial = Tensor::f_empty([i64::from(blocks)], (Kind::Float, backend.device()))?;
    let kernel = if gradients.kind() == Kind::Float {
        "squares_fp32"
    } else {
        "squares_bf16"
    };
    let arguments = Arguments::default()
        .tensor(gradients)
        .tensor(&partial)
        .long(count);
    arguments.launch(backend, kernel, [blocks, 1], 512, 0)?;
    Ok(partial)
}

/// Adds up gradients from several ranks, which lie one after another; puts the sum into `out`, or
/// adds it there.
pub fn add_parts(
    backend: &dyn Backend,
    received: &Tensor,
    out: &Tensor,
    accumulate: bool,
) -> Result<(), TchError> {
    let (kind, count) = (out.kind(), out.numel() as i64);
    let parts = received.numel() as i64 / count.max(1);
    let fits = is_state(kind)
        && received.kind() == kind
        && received.numel() as i64 == parts * count
        && count % 4 == 0;
    require(fits, "add_parts", &[received, out])?;
    let kernel = if kind == Kind::Float {
        "add_parts_fp32"
    } else {
        "add_parts_bf16"
    };
    let blocks = u32::try_from((count / 4 + 511) / 512)
        .map_err(|_| failure(format!("add_parts of {count} values")))?;
    Arguments::default()
        .tensor(received)
        .tensor(out)
        .int(parts)
        .long(count)
        .int(i64::from(accumulate))
        .launch(backend, kernel, [blocks.max(1), 1], 512, 0)
}

/// Clips, updates, and writes the bf16 weights.
pub fn adamw(backend: &dyn Backend, update: &Update, options: AdamW) -> Result<(), TchError> {
    let Update {
        masters,
        values,
        gradients,
        first,
        second,
        norm,
    } = update;
    let count = masters.numel() as i64;
    let kind = masters.kind();
    let fits = is_state(kind)
        && [*gradients, *first, *second]
            .iter()
            .all(|t| t.numel() as i64 == count && t.kind() == kind)
        && values.numel() as i64 == count
        && values.kind() == Kind::BFloat16
        && (kind == Kind::Float || values.data_ptr() == masters.data_ptr())
        && norm.kind() == Kind::Float
        && count % 8 == 0;
    require(fits, "adamw", &[masters, values, gradients, first, second])?;
    // Each thread takes 16 bytes of each buffer.
    let (kernel, unit) = if kind == Kind::Float {
        ("adamw_fp32", 4)
    } else {
        ("adamw_bf16", 8)
    };
    let blocks = u32::try_from((count / unit + 511) / 512)
        .map_err(|_| failure(format!("adamw of {count} values")))?;
    Arguments::default()
        .tensor(masters)
        .tensor(values)
        .tensor(gradients)
        .tensor(first)
        .tensor(second)
        .tensor(norm)
        .long(count)
        .adamw(options)
        .launch(backend, kernel, [blocks.max(1), 1], 512, 0)
}
