//! Our own kernels: compiled for the card at first use, cached on disk, loaded before planning.

use std::collections::HashMap;
use std::ffi::CString;

use super::compile::{self, CACHE_VARIABLE};
use super::driver::{Argument, Follows, Function, Module, Stream};
use super::progress::told_if_slow;
use crate::DeviceError;

pub(super) const FILES: [(&str, &str); 16] = [
    ("attention.cu", include_str!("kernels/attention.cu")),
    (
        "attention_plain.cu",
        include_str!("kernels/attention_plain.cu"),
    ),
    ("contrastive.cu", include_str!("kernels/contrastive.cu")),
    ("convolution.cu", include_str!("kernels/convolution.cu")),
    ("elements.cu", include_str!("kernels/elements.cu")),
    ("group_norm.cu", include_str!("kernels/group_norm.cu")),
    ("images.cu", include_str!("kernels/images.cu")),
    ("layer_norm.cu", include_str!("kernels/layer_norm.cu")),
    ("linear.cu", include_str!("kernels/linear.cu")),
    ("losses.cu", include_str!("kernels/losses.cu")),
    ("noise.cu", include_str!("kernels/noise.cu")),
    ("overlap_loss.cu", include_str!("kernels/overlap_loss.cu")),
    ("pixel_losses.cu", include_str!("kernels/pixel_losses.cu")),
    ("tokens.cu", include_str!("kernels/tokens.cu")),
    ("update.cu", include_str!("kernels/update.cu")),
    ("vocabulary.cu", include_str!("kernels/vocabulary.cu")),
];

/// Message during the compilation.
fn compiling(architecture: &str) -> String {
    match compile::cache_folder() {
        Some(folder) => format!(
            "Compiling kernels for {architecture} (once; kept in {})",
            folder.display()
        ),
        None => format!(
            "Compiling kernels for {architecture} (at every start: no folder to keep them in is known, {} names one)",
            compile::CACHE_VARIABLE
        ),
    }
}

/// Compiles every file, with one thread per file.
fn compile_all(architecture: &str, element: u32) -> Vec<Result<Vec<u8>, DeviceError>> {
    std::thread::scope(|scope| {
        let workers: Vec<_> = FILES
            .iter()
            .map(|&(name, text)| {
                scope.spawn(move || {
                    let source = compile::source(name, text);
                    compile::cached(&source, name, architecture, element)
                        .map_err(|error| DeviceError::Failed(error.to_string()))
                })
            })
            .collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined
            .map(|result| result.expect("the compiler does not panic"))
            .collect()
    })
}

/// The kernels for one number format.
pub(super) struct Kernels {
    modules: Vec<Module>,
    follows: Follows,
    functions: std::sync::Mutex<HashMap<&'static str, Function>>,
}

impl Kernels {
    /// Compiles the kernels that are not in the cache, and loads all of them.
    pub fn load(capability: u32, element: u32) -> Result<Kernels, DeviceError> {
        let architecture = format!("sm_{capability}");
        let kept = FILES.iter().all(|&(name, text)| {
            compile::is_kept(&compile::source(name, text), name, &architecture, element)
        });
        let compiled = if kept {
            compile_all(&architecture, element)
        } else {
            told_if_slow(&compiling(&architecture), || {
                compile_all(&architecture, element)
            })
        };
        let mut modules = Vec::new();
        for image in compiled {
            modules.push(Module::new(&image?)?);
        }
        let follows = match capability {
            0..90 => Follows::AtItsEnd,
            _ => Follows::Early,
        };
        Ok(Kernels {
            modules,
            follows,
            functions: Default::default(),
        })
    }

    fn function(&self, name: &'static str) -> Result<Function, DeviceError> {
        let mut functions = self
            .functions
            .lock()
            .expect("never poisoned: nothing panics with it");
        if let Some(&function) = functions.get(name) {
            return Ok(function);
        }
        let function = find(&self.modules, name)?;
        functions.insert(name, function);
        Ok(function)
    }

    pub fn launch(
        &self,
        name: &'static str,
        stream: &Stream,
        grid: [usize; 3],
        block: usize,
        arguments: &[Argument],
    ) -> Result<(), DeviceError> {
        self.function(name)?
            .launch(stream, grid, block, self.follows, arguments)
    }
}

/// The kernel with this name in any of the modules.
pub(super) fn find(modules: &[Module], name: &str) -> Result<Function, DeviceError> {
    let text = CString::new(name).expect("names of kernels have no zero byte");
    for module in modules {
        if let Some(function) = module.function(&text)? {
            return Ok(function);
        }
    }
    Err(DeviceError::Failed(format!(
        "expected a kernel called {name}, found none in what was compiled\n\
         hint: empty the cache folder ({CACHE_VARIABLE}, or ~/.cache/holdall) and run again; if it stays, please report it"
    )))
}
