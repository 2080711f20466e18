"""Factories of policies that are right, in the styles in which people write them."""

import copy
import math
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

ROLE = "model_factory"
EXPECTED = {
    "add_lora": "scale alpha / r = 3",
    "policy_and_reference": "the reference is a copy of the policy when it goes on with a given adapter",
    "peft_policy": "scale alpha / r",
    "load_models": "the reference is a copy of the policy",
    "Trainer.setup": "the reference is a copy of the policy",
    "with_optimizer": "it holds all",
    "rank_stabilised": "scale alpha / sqrt(r) = 6",
    "with_saved_modules": "lm_head is trained whole",
    "resume_adapter": "tensors with",
    "frozen_a": "the adapters change the output",
    "checkpointed": "trainable tensors have a gradient",
    "mixed_precision": "scale alpha / r = 3",
    "transposed": "scale alpha / r = 3",
    "with_value_head": "trainable",
    "upper_layers_only": "trainable",
    "from_config": "scale alpha / r = 3",
    "base_as_reference": "the reference is a copy of the policy",
    "all_linear": "adapters in down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj",
    "merged_start": "the reference is a copy of the policy",
}


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r: int, alpha: float, dropout: float = 0.0):
        super().__init__()
        self.base = base
        for p in self.base.parameters():
            p.requires_grad = False
        self.lora_A = nn.Parameter(torch.randn(r, base.in_features) / math.sqrt(r))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scaling = alpha / r
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.base(x) + self.dropout(x) @ self.lora_A.T @ self.lora_B.T * self.scaling


def _wrap(model, targets, make):
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and name in targets:
                setattr(module, name, make(child))
    return model


def add_lora(model, r=8, alpha=16, target_modules=("q_proj", "v_proj")):
    """Freezes the model and puts LoRA adapters into the target modules."""
    model.requires_grad_(False)
    return _wrap(model, target_modules, lambda child: LoRALinear(child, r, alpha))


def policy_and_reference(base_model, adapter_state=None, rank=8, alpha=16):
    """Returns (policy, ref): the policy goes on with the adapter of the SFT stage; the reference is its frozen copy."""
    policy = _wrap(copy.deepcopy(base_model).requires_grad_(False), ("q_proj", "k_proj", "v_proj"), lambda c: LoRALinear(c, rank, alpha))
    if adapter_state is not None:
        missing, unexpected = policy.load_state_dict(adapter_state, strict=False)
        assert not unexpected
    ref = copy.deepcopy(policy)
    ref.eval()
    for p in ref.parameters():
        p.requires_grad = False
    return policy, ref


def peft_policy(args):
    """Policy with LoRA on attention and MLP projections."""
    tokenizer = AutoTokenizer.from_pretrained(args.model_name)
    model = AutoModelForCausalLM.from_pretrained(args.model_name, torch_dtype=torch.float32)
    config = LoraConfig(
        r=args.lora_r,
        lora_alpha=args.lora_alpha,
        lora_dropout=0.05,
        bias="none",
        task_type=TaskType.CAUSAL_LM,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    )
    model = get_peft_model(model, config)
    model.print_trainable_parameters()
    return model, tokenizer


@dataclass
class ModelArgs:
    model_name_or_path: str = "Qwen/Qwen2.5-0.5B"
    learning_rate: float = 1e-6
    bf16: bool = False
    extra: dict = field(default_factory=dict)


def load_models(cfg: ModelArgs):
    """Full fine-tuning: a policy and its frozen reference."""
    policy = AutoModelForCausalLM.from_pretrained(cfg.model_name_or_path)
    ref = AutoModelForCausalLM.from_pretrained(cfg.model_name_or_path)
    ref.requires_grad_(False)
    ref.eval()
    return policy, ref


class Trainer:
    def __init__(self, model, lr=1e-5):
        self.model = model
        self.lr = lr

    def setup(self):
        self.ref_model = copy.deepcopy(self.model).eval()
        for p in self.ref_model.parameters():
            p.requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.lr)


def with_optimizer(model, lora_r=16, lora_alpha=32, lr=1e-4, weight_decay=0.01):
    model = _wrap(model.requires_grad_(False), ("q_proj", "v_proj"), lambda c: LoRALinear(c, lora_r, lora_alpha))
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=lr, weight_decay=weight_decay)
    return {"policy": model, "optimizer": optimizer}


class _Stabilised(LoRALinear):
    def __init__(self, base, r, alpha):
        super().__init__(base, r, alpha)
        self.scaling = alpha / math.sqrt(r)


def rank_stabilised(model, r=8, alpha=16):
    """rsLoRA: the scale is alpha over the square root of the rank."""
    return _wrap(model.requires_grad_(False), ("q_proj", "up_proj"), lambda c: _Stabilised(c, r, alpha))


def with_saved_modules(model, r=8, lora_alpha=16, modules_to_save=("lm_head",)):
    model.requires_grad_(False)
    model = _wrap(model, ("q_proj", "v_proj"), lambda c: LoRALinear(c, r, lora_alpha))
    for name, module in model.named_modules():
        if name.split(".")[-1] in modules_to_save:
            module.requires_grad_(True)
    return model


def resume_adapter(model_name, adapter_path):
    """Goes on training the adapter in `adapter_path`."""
    base = AutoModelForCausalLM.from_pretrained(model_name)
    return PeftModel.from_pretrained(base, adapter_path, is_trainable=True)


def frozen_a(model, r=8, alpha=16):
    """LoRA-FA: the first matrix stays as it was drawn."""
    model = add_lora(model, r, alpha)
    for name, p in model.named_parameters():
        if name.endswith("lora_A"):
            p.requires_grad = False
    return model


def checkpointed(model, r=8, alpha=16):
    model = add_lora(model, r, alpha, ("q_proj", "k_proj", "v_proj", "o_proj"))
    model.config.use_cache = False
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    model.enable_input_require_grads()
    return model


class _Cast(LoRALinear):
    def forward(self, x):
        low = F.linear(F.linear(x.float(), self.lora_A), self.lora_B) * self.scaling
        return self.base(x) + low.to(x.dtype)


def mixed_precision(model, r=8, alpha=16):
    """The base in bfloat16, the adapters in float32."""
    model = model.to(torch.bfloat16).requires_grad_(False)
    return _wrap(model, ("q_proj", "v_proj", "down_proj"), lambda c: _Cast(c, r, alpha))


class _Transposed(nn.Module):
    def __init__(self, linear, rank, alpha):
        super().__init__()
        self.linear = linear
        self.down = nn.Parameter(torch.randn(linear.in_features, rank) * 0.02)
        self.up = nn.Parameter(torch.zeros(rank, linear.out_features))
        self.rank, self.alpha = rank, alpha

    def forward(self, x):
        return self.linear(x) + (self.alpha / self.rank) * (x @ self.down @ self.up)


def transposed(model, rank=4, alpha=8):
    for p in model.parameters():
        p.requires_grad = False
    return _wrap(model, ("q_proj", "v_proj"), lambda c: _Transposed(c, rank, alpha))


class _WithValueHead(nn.Module):
    def __init__(self, lm):
        super().__init__()
        self.lm = lm
        self.v_head = nn.Linear(16, 1)

    def forward(self, input_ids, attention_mask=None, **kwargs):
        out = self.lm(input_ids, attention_mask=attention_mask)
        return out.logits, None, input_ids.float()


def with_value_head(model):
    """Policy with a value head that another loss trains."""
    return _WithValueHead(model)


def upper_layers_only(model, num_trainable_layers=1):
    """Trains the last block and the head alone."""
    model.requires_grad_(False)
    for layer in model.model.layers[-num_trainable_layers:]:
        layer.requires_grad_(True)
    model.lm_head.requires_grad_(True)
    return model


def from_config(r=4, alpha=8, seed=0):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=48, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64,
    )
    model = LlamaForCausalLM(config)
    return add_lora(model, r, alpha)


def base_as_reference(base_model, r=8, alpha=16):
    """Fresh adapters, so that the base model itself is the reference."""
    ref = copy.deepcopy(base_model).requires_grad_(False).eval()
    return add_lora(base_model, r, alpha), ref


def all_linear(model, r=8, alpha=16):
    """LoRA adapters in every linear projection of attention and MLP."""
    targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    return add_lora(model, r, alpha, targets)


def merged_start(model):
    """The reference shares nothing with the policy."""
    reference = copy.deepcopy(model)
    reference.eval()
    reference.requires_grad_(False)
    model.train()
    return {"actor": model, "ref": reference}
