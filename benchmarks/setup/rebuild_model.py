"""Make the folder that vLLM loads from a GGUF file: rebuild_model.py MODEL.gguf FOLDER.

A state dict read from GGUF is dequantised, yet the model still carries a quantization config that
vLLM would refuse: so a plain Llama is built around the same weights. What transformers makes of the
tokenizer in a GGUF file lacks the model's own way to cut digits off ("pre: smollm"), without which
"\\n\\n4" has other tokens than the model was trained on (and than llama.cpp counts): it is put
back. The folder appears only when complete.
"""

import os
import shutil
import sys
from pathlib import Path

import torch
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

gguf, folder = sys.argv[1:]
source, file_name = os.path.split(gguf)

tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file_name)
tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
    [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
)
quantised = AutoModelForCausalLM.from_pretrained(source, gguf_file=file_name, dtype=torch.float32)
config = quantised.config.to_dict()
config.pop("quantization_config", None)
model = LlamaForCausalLM(LlamaConfig(**config))
model.load_state_dict(quantised.state_dict())

unfinished = folder + ".part"
shutil.rmtree(unfinished, ignore_errors=True)
model.to(torch.bfloat16).save_pretrained(unfinished)
tokenizer.save_pretrained(unfinished)
shutil.rmtree(folder, ignore_errors=True)
Path(unfinished).rename(folder)
