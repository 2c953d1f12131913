//! The kernels and the whole step on the CPU: kernels/ compiled as C++, products and attention by
//! libtorch.

use std::{
    ffi::{CString, c_char, c_int, c_uint, c_void},
    path::Path,
    process::Command,
    sync::OnceLock,
};

use libloading::os::unix::Library;
use tprimat_job::ModelShape;

use super::{
    backend::{Attention, Layout, Product},
    *,
};
use crate::{backward, model::Model, tokens::Tokens, weights};

type HostLaunch =
    unsafe extern "C" fn(*const c_char, c_uint, c_uint, c_uint, usize, *mut *mut c_void) -> c_int;

/// The kernels as a library of this host, compiled once for all tests.
fn host_kernels() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("kernels.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/fused/host.cpp");
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
        let mut command = Command::new(&compiler);
        // Without contraction, so that the CPU rounds each product as the source says.
        command.args([
            "-std=c++17",
            "-O2",
            "-ffp-contract=off",
            "-fPIC",
            "-shared",
            "-w",
            "-o",
        ]);
        let status = command.arg(&library).arg(&source).status();
        assert!(
            status.as_ref().is_ok_and(|s| s.success()),
            "{compiler} compiles {}: {status:?}",
            source.display()
        );
        // SAFETY: a library that was compiled just now and has no initialisers of note.
        unsafe { Library::new(&library) }.unwrap()
    })
}

pub struct Host;

impl Host {
    fn wide(t: &Tensor) -> Tensor {
        t.to_kind(Kind::Float)
    }
}

impl Backend for Host {
    fn device(&self) -> Device {
        Device::Cpu
    }

    fn multiprocessors(&self) -> u32 {
        2
    }

    fn shared_memory(&self) -> u32 {
        // Less than a row of logits: both ways of reading it are met.
        96 << 10
    }

    fn multiplies_fp8(&self) -> bool {
        true
    }

    unsafe fn launch(
        &self,
        kernel: &'static str,
        grid: [u32; 2],
        threads: u32,
        shared: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), TchError> {
        // SAFETY: host.cpp declares the function so.
        let launch = unsafe { host_kernels().get::<HostLaunch>(b"host_launch") }.unwrap();
        let name = CString::new(kernel).unwrap();
        // SAFETY: the caller vouches for the arguments.
        let code = unsafe {
            launch(
                name.as_ptr(),
                grid[0],
                grid[1],
                threads,
                shared as usize,
                arguments.as_mut_ptr(),
            )
        };
        assert_eq!(code, 0, "host.cpp lists {kernel}");
        Ok(())
    }

    fn multiply(&self, product: &Product) -> Result<(), TchError> {
        let (mut left, mut right) = (Self::wide(product.left), Self::wide(product.right));
        if let Some(scales) = product.scales {
            (left, right) = (left.f_mul(scales[0])?, right.f_mul(scales[1])?);
        }
        let mut result = match product.layout {
            Layout::Forward => left.f_matmul(&right.f_tr()?)?,
            Layout::Input => left.f_matmul(&right)?,
            Layout::Weight => left.f_tr()?.f_matmul(&right)?,
        };
        for term in [product.add, product.bias].into_iter().flatten() {
            result = result.f_add(&Self::wide(term))?;
        }
        product.out.shallow_clone().f_copy_(&result)
    }

    fn attention(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Attention, TchError> {
        let [q, k, v] = [q, k, v].map(Self::wide);
        let output = sdpa(&q, &k, &v)?
            .f_to_kind(Kind::BFloat16)?
            .f_transpose(1, 2)?
            .f_contiguous()?;
        Ok(Attention {
            output: output.f_transpose(1, 2)?,
            rest: Vec::new(),
        })
    }

    fn attention_backward(
        &self,
        gradient: &Tensor,
        inputs: [&Tensor; 3],
        _: &Attention,
    ) -> Result<[Tensor; 3], TchError> {
        tch::with_grad(|| {
            let [q, k, v] = inputs.map(|t| Self::wide(t).detach().set_requires_grad(true));
            let handed_over = sdpa(&q, &k, &v)?
                .f_mul(&Self::wide(gradient))?
                .f_sum(Kind::Float)?;
            let gradients = Tensor::f_run_backward(&[handed_over], &[&q, &k, &v], false, false)?;
            let by_token = |t: &Tensor| t.to_kind(Kind::BFloat16).transpose(1, 2).contiguous();
            Ok([
                by_token(&gradients[0]),
                by_token(&gradients[1]),
                by_token(&gradients[2]),
            ])
        })
    }
}

fn sdpa(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor, TchError> {
    let grouped = q.size()[1] != k.size()[1];
    Tensor::f_scaled_dot_product_attention(q, k, v, None::<Tensor>, 0.0, true, None::<f64>, grouped)
}

#[test]
fn every_kernel_agrees_with_float64() {
    let _turn = weights::take_turns();
    let findings = check::all(&Host).unwrap();
    assert!(findings.len() > 100);
    for finding in findings {
        assert!(
            finding.error <= finding.limit,
            "{}: {:.2e}",
            finding.what,
            finding.error
        );
    }
}

/// Stochastic rounding keeps on average what rounding to nearest would lose.
#[test]
fn small_updates_are_not_lost_in_bf16() {
    let count = 1 << 14;
    let run = |is_random: bool| {
        let masters = Tensor::ones([count], (Kind::BFloat16, Device::Cpu));
        let [first, second, gradients] = [0.0, 0.0, 1.0].map(|v| masters.zeros_like().fill_(v));
        let norm = Tensor::from(1.0_f32);
        let update = kernels::Update {
            masters: &masters,
            values: &masters,
            gradients: &gradients,
            first: &first,
            second: &second,
            norm: &norm,
        };
        for t in 1..=100 {
            // Each update is 1e-4, a fortieth of the distance between two values near 1.
            let options = kernels::AdamW {
                decay: 1.0,
                step_size: 1e-4,
                root_scale: 1.0,
                seed: if is_random { t } else { 0 },
                ..kernels::AdamW::default()
            };
            kernels::adamw(&Host, &update, options).unwrap();
        }
        masters
            .to_kind(Kind::Double)
            .mean(Kind::Double)
            .double_value(&[])
    };
    assert_eq!(run(false), 1.0);
    assert!((run(true) - 0.99).abs() < 5e-4, "{}", run(true));
}

pub fn shape(tied: bool, qkv_bias: bool) -> ModelShape {
    ModelShape {
        num_layers: 2,
        hidden_size: 64,
        ffn_hidden_size: 96,
        num_attention_heads: 4,
        num_kv_heads: 2,
        head_dim: 32,
        vocab_size: 56,
        rope_theta: 1e4,
        norm_eps: 1e-5,
        tie_embeddings: tied,
        qkv_bias,
        ..ModelShape::default()
    }
}

/// The gradients of one step of two micro-batches by both paths, by parameter, and both losses.
fn gradients_by_both_paths(
    model: &ModelShape,
    edit: impl Fn(&mut Fused),
) -> Vec<(String, Tensor, Tensor)> {
    gradients_of(
        &Job {
            model: model.clone(),
            precision: "bf16".to_owned(),
            ..Job::default()
        },
        edit,
    )
}

fn gradients_of(job: &Job, edit: impl Fn(&mut Fused)) -> Vec<(String, Tensor, Tensor)> {
    // In fp8, three rows of it are a multiple of 16.
    let length = if job.precision == "fp8" { 16 } else { 9 };
    let mut job = job.clone();
    let model = &job.model.clone();
    job.data.seq_length = length as u64;
    let shape = Shape::of(model).unwrap();
    let new = |kind| {
        let mut parameters =
            Parameters::new(&shape.parameters(), kind, Kind::Float, 0.0, Device::Cpu).unwrap();
        weights::initialise(&mut parameters, 5, 0.1, Device::Cpu).unwrap();
        tch::manual_seed(6);
        tch::no_grad(|| {
            for p in parameters
                .list
                .iter_mut()
                .filter(|p| p.name.contains("norm") || p.name.ends_with("bias"))
            {
                let _ = p.master.uniform_(0.5, 1.5);
            }
            // Both paths start from weights that bf16 holds.
            for p in &mut parameters.list {
                let rounded = p.master.to_kind(Kind::BFloat16);
                p.master.copy_(&rounded);
            }
        });
        parameters.publish().unwrap();
        parameters
    };
    let (mut reference, parameters) = (new(Kind::Float), new(Kind::BFloat16));
    let network = Model::new(&shape, &reference, length as u64, Device::Cpu).unwrap();
    let mut fused = Fused::new(&job, &shape, &parameters, Rc::new(Host), None).unwrap();
    edit(&mut fused);
    let tokens = Tokens::Synthetic {
        seed: 3,
        length: length as u64,
    };
    let mut losses = [0.0, 0.0];
    for micro_step in 0..2 {
        let (inputs, targets) = tokens.batch(micro_step * 3, 3, model.vocab_size).unwrap();
        let size = [3, length];
        let plan = backward::Plan::new(network.num_parts(), 0);
        let [input, target] = [&inputs, &targets].map(|v| Tensor::from_slice(v).reshape(size));
        let loss = backward::run(&network, &mut reference, &plan, &input, &target, 0.5).unwrap();
        losses[0] += loss.double_value(&[]);
        let batch = MicroBatch {
            tokens: Tensor::from_slice(&inputs),
            targets: Tensor::from_slice(&targets),
            segments: fused.segments(&inputs).unwrap(),
            predictions: 3.0 * (length - 1) as f64,
        };
        losses[1] += fused
            .run(
                &batch,
                0.5,
                Turn {
                    is_first: micro_step == 0,
                    is_last: micro_step == 1,
                },
            )
            .unwrap()
            .double_value(&[]);
    }
    let mut all = vec![(
        "loss".to_owned(),
        Tensor::from(losses[0]),
        Tensor::from(losses[1]),
    )];
    let norms = (
        reference.grad_norm().unwrap(),
        fused.grad_norm(&parameters).unwrap(),
    );
    all.push(("norm".to_owned(), norms.0, norms.1));
    for i in 0..reference.list.len() {
        let gradient = |p: &Parameters| p.list[i].grad().copy();
        all.push((
            reference.list[i].name.clone(),
            gradient(&reference),
            gradient(&parameters),
        ));
    }
    all
}

pub fn distance(a: &Tensor, b: &Tensor) -> f64 {
    let [a, b] = [a, b].map(|t| t.to_kind(Kind::Double));
    ((&a - &b).norm() / b.norm()).double_value(&[])
}

/// Without the bf16 roundings the two would agree to 1e-5; a term that is missing shows at 0.1 or
/// more.
#[test]
fn the_written_out_backward_pass_is_the_derivative() {
    let _turn = weights::take_turns();
    for (tied, bias) in [(false, false), (true, true)] {
        for (name, reference, fused) in gradients_by_both_paths(&shape(tied, bias), |_| ()) {
            let error = distance(&fused, &reference);
            assert!(error < 0.03, "{name}, tied {tied}: {error:.2e}");
        }
    }
}

/// In fp8 three bits of each factor are kept; the gradients still point the same way.
#[test]
fn gradients_in_fp8_are_near_those_in_fp32() {
    let _turn = weights::take_turns();
    for fp8_hybrid in [false, true] {
        let job = Job {
            model: shape(false, true),
            precision: "fp8".to_owned(),
            fp8_hybrid,
            ..Job::default()
        };
        let limit = if fp8_hybrid { 0.2 } else { 0.12 };
        let by_name = gradients_of(&job, |_| ());
        assert!(distance(&by_name[0].2, &by_name[0].1) < 5e-3, "loss");
        for (name, reference, fused) in by_name {
            let error = distance(&fused, &reference);
            // The softmax takes out what all keys have in common, so the gradient of their bias is
            // a small difference.
            let limit = if name.ends_with("k_proj.bias") {
                3.0 * limit
            } else {
                limit
            };
            assert!(error < limit, "{name}, hybrid {fp8_hybrid}: {error:.2e}");
        }
        let recomputed = gradients_of(&job, |fused| fused.recompute_every = 1);
        for ((name, _, a), (_, _, b)) in gradients_of(&job, |_| ()).iter().zip(&recomputed) {
            assert!(a.equal(b), "{name}: recomputing changed bits");
        }
    }
}

#[test]
fn recomputing_restoring_and_parts_of_logits_change_no_bit() {
    let _turn = weights::take_turns();
    let shape = shape(false, true);
    let whole = gradients_by_both_paths(&shape, |_| ());
    let recomputed = gradients_by_both_paths(&shape, |fused| fused.recompute_every = 2);
    let restored = gradients_by_both_paths(&shape, |fused| fused.common.restores = true);
    let both = gradients_by_both_paths(&shape, |fused| {
        (fused.recompute_every, fused.common.restores) = (2, true)
    });
    for other in [recomputed, restored, both] {
        for ((name, _, a), (_, _, b)) in whole.iter().zip(&other) {
            assert!(a.equal(b), "{name}");
        }
    }
    // Another order of sums: equal but for rounding.
    let parts = gradients_by_both_paths(&shape, |fused| fused.logits_at_once = 500);
    for ((name, _, a), (_, _, b)) in whole.iter().zip(&parts) {
        assert!(distance(a, b) < 1e-5, "{name}");
    }
}

/// The gradient of an untied embedding holds nothing of the step before.
#[test]
fn a_step_forgets_the_rows_of_the_last_one() {
    let _turn = weights::take_turns();
    let shape = shape(false, false);
    let job = Job {
        model: shape.clone(),
        precision: "bf16".to_owned(),
        ..Job::default()
    };
    let job = Job {
        data: tprimat_job::DataJob {
            seq_length: 4,
            ..job.data.clone()
        },
        ..job
    };
    let shape = Shape::of(&shape).unwrap();
    let mut parameters = Parameters::new(
        &shape.parameters(),
        Kind::BFloat16,
        Kind::Float,
        0.0,
        Device::Cpu,
    )
    .unwrap();
    weights::initialise(&mut parameters, 5, 0.1, Device::Cpu).unwrap();
    let fused = Fused::new(&job, &shape, &parameters, Rc::new(Host), None).unwrap();
    let step = |tokens: &[i64]| {
        let batch = MicroBatch {
            tokens: Tensor::from_slice(tokens),
            targets: Tensor::from_slice(tokens),
            segments: fused.segments(tokens).unwrap(),
            predictions: 4.0,
        };
        drop(
            fused
                .run(
                    &batch,
                    1.0,
                    Turn {
                        is_first: true,
                        is_last: true,
                    },
                )
                .unwrap(),
        );
        fused.embedding.gradient.copy()
    };
    let [alone, _, again] = [[7, 8, 9, 7], [1, 2, 3, 4], [7, 8, 9, 7]].map(|tokens| step(&tokens));
    assert!(again.equal(&alone));
}

/// NVRTC accepts the kernels for every generation that PyTorch's wheels support. A PyTorch for CPUs
/// brings no NVRTC.
#[cfg(torch_has_cuda)]
#[test]
fn nvrtc_compiles_the_kernels() {
    let torch = std::fs::read_to_string("/proc/self/maps").unwrap();
    let torch = torch
        .lines()
        .filter_map(|l| l.split_whitespace().last())
        .find(|p| p.contains("libtorch_cpu.so"));
    let lib = Path::new(torch.expect("libtorch is loaded"))
        .parent()
        .unwrap();
    let packages = lib.parent().and_then(Path::parent).unwrap().join("nvidia");
    let mut folders: Vec<_> = packages
        .read_dir()
        .unwrap()
        .map(|e| e.unwrap().path().join("lib"))
        .collect();
    folders.retain(|folder| folder.is_dir());
    let files = folders
        .iter()
        .flat_map(|folder| folder.read_dir().unwrap())
        .map(|e| e.unwrap().path());
    let nvrtc = files
        .filter(|f| {
            f.file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with("libnvrtc.so."))
        })
        .min()
        .expect("PyTorch's wheels for CUDA bring NVRTC");
    // SAFETY: NVIDIA's compiler library; it needs no device.
    let library = unsafe { Library::new(nvrtc) }.unwrap();
    for architecture in ["sm_80", "sm_90"] {
        let binary = driver::compile(&library, architecture).unwrap();
        assert!(binary.starts_with(b"\x7fELF"), "{architecture}");
    }
}
