//! Models as files: Hugging Face folders, adapters, ONNX.

pub mod adapter_files;
pub mod model_copy;
pub mod model_files;
pub mod onnx;
pub mod saved_inputs;
pub mod saved_model;
