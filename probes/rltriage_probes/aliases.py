"""What users call things: the one table from spellings to words of the vocabulary.

`resolve` reads a parameter's name in the context of a role, because the same name means different
things in different functions (`index` selects tokens in a log-prob function and groups in an
advantage function). Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

_SPELLINGS: dict[str, str] = {
    "logits": (
        "logits pred_logits next_token_logits logits_rmpad vocab_parallel_logits policy_logits shifted_logits "
        "shift_logits lm_logits output_logits model_logits query_response_logits raw_logits"
    ),
    "ref_logits": "ref_logits reference_logits base_logits teacher_logits logits_ref ref_policy_logits logits_q q_logits",
    "hidden_states": (
        "hidden_states hidden hiddens last_hidden_state last_hidden_states hidden_state h last_hidden output_hidden_states"
    ),
    "lm_head_weight": (
        "lm_head_weight lm_head_weights head_weight lm_weight vocab_weight linear_weight unembedding unembed "
        "output_embeddings unembed_weight weight lm_head_w head_w w"
    ),
    "lm_head_bias": "lm_head_bias head_bias lm_bias linear_bias bias lm_head_b",
    "token_ids": (
        "token_ids input_ids completion_ids ids tokens target_ids target_tokens selected_token_ids response_ids responses "
        "completion_tokens response_tokens generated_ids generated_tokens output_ids output_tokens sequences sequence_ids sequence query_responses "
        "input_tokens targets target shift_labels labels label index indices actions action sampled_ids chosen_ids "
        "completion_input_ids completions completion response gen_ids seqs"
    ),
    "labels": "labels label_ids",
    "attention_mask": "attention_mask attn_mask full_attention_mask input_mask attention_masks",
    "completion_mask": (
        "completion_mask response_mask loss_mask action_mask mask masks token_mask valid_mask assistant_mask "
        "assistant_masks tool_mask row_mask response_masks loss_masks answer_mask train_mask completion_masks "
        "action_masks padding_mask padding_masks pad_mask gen_mask generated_mask output_mask weight_mask"
    ),
    "prompt_length": "prompt_length prompt_len input_len prompt_size query_length context_length prompt_width num_prompt_tokens "
    "input_length start_idx prompt_lens",
    "completion_length": (
        "completion_length logits_to_keep num_logits_to_keep response_length response_len num_actions completion_len "
        "num_completion_tokens gen_length gen_len num_response_tokens"
    ),
    "lengths": "lengths seq_lens seq_lengths sequence_lengths completion_lengths response_lengths seqlens lens valid_lengths",
    "cu_seqlens": "cu_seqlens cu_seq_lens cu_seqlens_q cu_seq_lens_q seq_offsets offsets cumulative_lengths",
    "logprobs": (
        "logprobs log_probs log_prob per_token_logps logps logprob logp train_log_probs next_token_logprobs "
        "token_logprobs training_logprobs new trainer_logprobs new_logprobs policy_per_token_logps pi_logprobs "
        "logprobs_new new_logps policy_logprobs curr_logprobs current_logprobs cur_logps action_log_probs target_logprobs "
        "newlogprob newlogprobs newlogp"
    ),
    "old_logprobs": (
        "old_logprobs old_log_probs old_log_prob old_logp old_per_token_logps old_logps prev_logprobs old "
        "old_policy_per_token_logps prox_logp log_probs_old proximal_logprobs logprobs_old pi_old_logprobs "
        "old_action_log_probs previous_logprobs b_logprobs"
    ),
    "ref_logprobs": (
        "ref_logprobs ref_log_probs ref_log_prob ref_logp log_probs_base ref_per_token_logps ref log_probs_ref "
        "reference_logprobs ref_logps logprobs_reference ref_logprob reference_policy_logprobs reference_log_probs "
        "base_logprobs ref_policy_logprobs"
    ),
    "rollout_logprobs": (
        "rollout_logprobs rollout_log_probs sampling_per_token_logps sampling_logprobs rollout_log_prob "
        "generation_logprobs sampling_logps vllm_logprobs gen_logps infer_logprobs inference_logprobs sampler_logprobs "
        "generator_logprobs behavior_logprobs behaviour_logprobs engine_logprobs"
    ),
    "ratio": "ratio ratios importance_ratio importance_weights is_ratio rho coef_1 prob_ratio",
    "log_ratio": "log_ratio log_ratios logratio negative_approx_kl log_importance_weights logratios",
    "negative_log_ratio": "ppo_kl negative_log_ratio",
    "entropies": "entropies entropy per_token_entropy token_entropies",
    "token_losses": (
        "token_losses per_token_loss per_token_losses token_loss loss_mat loss losses pg_losses pg_loss values value vals x "
        "tensor loss_matrix per_token_values token_values loss_per_token losses_per_token elementwise_loss unreduced_loss "
        "raw_loss token_level_loss policy_losses loss_values kl_mat per_token_kl data inputs micro_batch_losses micro_losses"
    ),
    "second_mask": (
        "second_mask tool_mask env_mask extra_mask keep_mask valid_mask filter_mask agent_mask observation_mask "
        "entropy_mask trust_mask trust_region_mask off_policy_mask rejection_mask"
    ),
    "is_truncated": (
        "is_truncated truncated truncated_mask was_truncated is_overlong overlong hit_length_limit truncation_mask "
        "truncations is_cut_off cut_off overlong_mask"
    ),
    "kept_rows": (
        "kept_rows sample_mask seq_mask row_keep keep_rows sequence_mask row_valid valid_rows is_complete finished "
        "is_finished terminated sample_valid sample_weights row_weights sequence_keep keep"
    ),
    "advantages": "advantages advantage advs adv masked_advantages mb_advantages raw_advantages advantage_values",
    "rewards": (
        "rewards reward scores score r rewards_list group_rewards raw_rewards rewards_per_func rm_scores reward_scores "
        "reward_score total_reward total_rewards sequence_rewards response_level_rewards outcome_rewards terminal_rewards "
        "rewards_per_group step_rewards final_rewards binary_rewards sample_rewards outcomes returns_per_sample seq_rewards"
    ),
    "token_rewards": "token_level_rewards token_rewards token_level_scores per_token_rewards dense_rewards rewards_per_token",
    "group_ids": (
        "group_ids group_id uids uid index indices group_idx group_index group_indices group groups prompt_ids "
        "prompt_id prompt_uids prompt_index prompt_indices problem_ids question_ids prompts prompt_idx group_labels "
        "traj_uuids group_keys example_ids"
    ),
    "is_last_step": "is_last_step is_last last_step is_last_turn last_turn",
    "trajectory_ids": "trajectory_ids trajectory_id traj_ids traj_id episode_ids",
    "values": (
        "values value phi_values vpreds old_values value_preds critic_values vpred new_values newvalue newvalues new_value values_new "
        "value_pred values_pred predicted_values pred_values cur_values current_values value_estimates v vals b_values v_pred state_values vf_preds "
        "v_preds vf_pred values_hat vhat v_hat value_preds_batch"
    ),
    "old_values": (
        "old_values values_old old_value phi_old_values rollout_values b_values mb_values vpreds_old old_vpreds prev_values "
        "old_critic_values old_value_preds v_old old_v previous_values values_prev behavior_values old_vals vf_old "
        "old_vpred old_v_preds v_preds_old values_rollout value_old target_old_values"
    ),
    "returns": (
        "returns target_value target_values value_targets return_ ret rets targets target value_target td_targets td_target "
        "b_returns mb_returns v_target v_targets return_targets lambda_returns critic_targets gae_returns returns_to_go "
        "rollout_returns vtarg v_targ value_targ return_batch ret_batch discounted_returns mc_returns returns_batch target_returns"
    ),
    "next_values": "next_values values_next next_state_values v_next next_vals bootstrap_values_per_step next_value_preds",
    "last_value": (
        "last_value next_value last_values bootstrap_value final_value bootstrap_values last_val final_values bootstrap "
        "tail_value value_last v_last terminal_value value_next"
    ),
    "dones": (
        "dones done terminals terminal terminated terminations episode_ends is_terminal episode_end done_mask ends "
        "is_done done_flags episode_dones is_end terminal_mask "
        "episode_starts episode_start first_steps"
    ),
    "alive": "alive nonterminal nonterminals non_terminal non_terminals not_done not_dones nondone continues nonterminal_mask alive_mask",
    "last_done": "last_done next_done last_dones next_dones final_done last_terminal next_terminal",
    "token_kl": "token_kl kl kls per_token_kl approx_kl kl_div kl_divergence kl_estimate kl_tokens kld kl_values",
    "last_index": (
        "last_index valid_score_idxs last_token_idx last_token_index eos_indices eos_index score_index score_idx "
        "last_idx last_indices end_positions last_positions last_token_positions eos_positions score_positions"
    ),
    "huber_delta": "huber_delta huber_beta delta_huber",
    "value_coef": "value_coef vf_coef value_loss_coef critic_coef vf_loss_coef value_coeff value_weight vf_coeff value_loss_weight",
    "buffer_length": (
        "buffer_length overlong_buffer_len overlong_buffer_length overlong_buffer buffer_len soft_punish_cache cache_len "
        "l_cache overlong_cache cache_length soft_cache buffer cache buffer_size overlong_buffer_size soft_overlong_cache "
        "overlong_prob_buffer margin_len tolerance"
    ),
    "penalty_factor": (
        "penalty_factor overlong_penalty_factor overlong_penalty penalty_scale penalty_weight overlong_factor max_penalty "
        "length_penalty_factor penalty_coef overlong_coef length_penalty_coef overlong_buffer_penalty overlong_buffer_penalty_factor factor penalty length_penalty penalty_coeff"
    ),
    "reward_clip": (
        "reward_clip reward_clip_range score_clip clip_reward cliprange_reward clip_score reward_clip_value max_reward_abs "
        "clip_range score_clip_range reward_range clip_rewards reward_bound"
    ),
    "group_size": (
        "group_size num_generations n_samples_per_prompt num_samples_per_prompt n_samples num_samples samples_per_prompt "
        "n_sample rollout_n k n g num_return_sequences num_generations_per_prompt num_samples_per_prompt_rollout "
        "num_answer_per_question generations_per_sample num_completions completions_per_prompt num_return_sequences_in_group "
        "rollouts_per_prompt group_n num_rollouts generations_per_prompt num_answers_per_question rollouts_per_example"
    ),
    "gamma": "gamma discount discount_factor gae_gamma",
    "lam": "lam lambd lmbda gae_lambda lambda_",
    "clip_low": (
        "clip_low epsilon_low eps_low clip_ratio_low eps_clip_low cliprange_low clip_eps_low clip_eps_lo ratio_clip_min "
        "pg_clip_low clip_lower clip_range_low clip_epsilon_low cispo_eps_clip_low clip_coef_low"
    ),
    "clip_high": (
        "clip_high epsilon_high eps_high clip_ratio_high eps_clip_high eps_clip_higher cliprange_high clip_eps_high "
        "clip_eps_hi ratio_clip_max pg_clip_high clip_higher clip_range_high clip_epsilon_high cispo_eps_clip_high clip_coef_high"
    ),
    "clip": (
        "clip epsilon eps_clip clip_ratio clip_param clip_eps cliprange clip_range clip_epsilon pg_clip ppo_clip "
        "clip_coef eps ppo_epsilon clip_coeff policy_clip ratio_clip"
    ),
    "dual_clip": "dual_clip clip_ratio_c eps_clip_c c_clip delta ratio_clip_c epsilon_c clip_c",
    "clip_value": (
        "clip_value cliprange_value value_clip clip_range_value value_eps_clip value_clip_range vf_clip vf_clip_param "
        "vf_clip_range clip_range_vf cliprange_vf clip_vf value_clip_eps value_cliprange vf_clip_eps value_clip_ratio"
    ),
    "beta": (
        "beta kl_coef kl_coeff kl_loss_coef kl_penalty_coef kl_ctrl kl_ctl kl_ratio init_kl_coef kl_coefficient kl_weight "
        "kl_beta kl_tau reference_policy_kl_penalty kl_lambda beta_kl"
    ),
    "entropy_coef": "entropy_coef entropy_coeff ent_coef entropy_bonus entropy_weight entropy_beta entropy_coefficient",
    "temperature": "temperature temp tau rollout_temperature sampling_temperature softmax_temperature t",
    "eps": "eps epsilon episilon std_eps norm_eps advantage_eps adv_eps eps_std stability_eps small_value",
    "scale_rewards": (
        "scale_rewards norm_adv_by_std_in_grpo grpo_norm_by_std normalize_by_std div_std norm_by_std scale_by_std "
        "std_normalization normalize_std use_std norm_adv_by_std scale divide_by_std grpo_std_normalization normalize "
        "normalize_advantages use_std_normalization standardize normalize_rewards normalise_rewards norm_rewards std_norm "
        "use_std_norm divide_std scale_advantages normalise_advantages norm_adv norm_std adv_norm"
    ),
    "aggregation": (
        "loss_agg_mode aggregation loss_reduction agg_mode agg loss_aggregation reduction_mode loss_agg mode agg_type "
        "aggregate reduction"
    ),
    "loss_type": "loss_type policy_loss_type loss_mode loss_fn_type surrogate",
    "ratio_level": "importance_sampling_level ratio_level is_level ratio_type",
    "kl_estimator": (
        "kl_estimator kl_penalty kl_type kl_loss_type kl_estimator_type estimator method kind kl_method kl_mode "
        "kl_penalty_type kl_form"
    ),
    "max_completion_length": (
        "max_completion_length max_response_length max_tokens max_new_tokens generate_max_len norm_len max_len "
        "max_gen_len total_response_len loss_scale_factor max_completion_len max_response_len max_length constant_length"
    ),
    "token_count": "num_items_in_batch batch_num_tokens global_valid_toks num_tokens token_count total_tokens global_num_tokens",
    "dim": "dim axis dims",
    "dp_size": "dp_size world_size data_parallel_size num_processes dp_world_size num_ranks dp_degree",
    "accumulation_steps": (
        "accumulation_steps gradient_accumulation_steps grad_accum_steps current_gradient_accumulation_steps "
        "num_micro_batches n_micro_batches grad_accum gradient_accumulation accum_steps"
    ),
    "weight_cap": (
        "weight_cap tis_clip cap is_cap rollout_is_threshold tis_imp_ratio_cap imp_ratio_cap clip_max max_weight "
        "max_ratio tis_cap is_clip tis_threshold is_threshold truncation_threshold upper upper_bound tis_clip_high "
        "vllm_importance_sampling_cap importance_sampling_cap ratio_cap clip_ratio_high threshold c c_max w_max weight_max "
        "truncated_importance_sampling_ratio truncated_importance_sampling_ratio_max icepop_high icepop_max "
        "rollout_is_threshold_upper is_upper hi high max_is_weight is_correction_threshold tis_upper ratio_max cap_high "
        "rho_max rho_bar truncate_at clip_high clip_threshold max_iw iw_cap is_ratio_cap upper_threshold"
    ),
    "weight_floor": (
        "weight_floor tis_clip_low lower lower_bound rollout_is_threshold_lower is_lower lo low min_weight min_ratio "
        "clip_min icepop_low icepop_min truncated_importance_sampling_ratio_min tis_lower ratio_min cap_low floor "
        "w_min weight_min vllm_importance_sampling_min is_floor lower_threshold mask_low"
    ),
    "weight_bounds": "weight_bounds is_bounds icepop_bounds ratio_bounds bounds trust_region ratio_range clip_range",
    "veto_threshold": "veto_threshold rollout_is_veto_threshold rollout_token_veto_threshold veto token_veto_threshold",
    "weight_mode": (
        "weight_mode vllm_importance_sampling_mode importance_sampling_mode is_mode tis_mode correction_mode mode "
        "correction is_correction rollout_is_mode"
    ),
    "row_count": "global_batch_size global_valid_seqs row_count num_sequences global_num_seqs",
    "eos_token_id": "eos_token_id eos_id eos_token eos stop_token_id end_token_id stop_id eos_idx end_id",
    "span_start_id": (
        "span_start_id info_start_id obs_start_id observation_start_id tool_start_id start_id open_id result_start_id "
        "information_start_id tool_response_start_id begin_id info_open_id start_marker_id obs_open_id tool_open_id "
        "retrieval_start_id doc_start_id tool_begin_id obs_begin_id start_token_id open_marker start_marker bos_info_id"
    ),
    "span_end_id": (
        "span_end_id info_end_id obs_end_id observation_end_id tool_end_id close_id result_end_id "
        "information_end_id tool_response_end_id finish_id info_close_id end_marker_id obs_close_id tool_close_id "
        "retrieval_end_id doc_end_id tool_finish_id obs_finish_id close_marker end_marker eos_info_id"
    ),
    "pad_token_id": "pad_token_id pad_id pad_token pad pad_idx padding_id fill_value",
    "top_k": "top_k topk k_top num_top n_top",
    "chunk_size": (
        "chunk_size chunk chunks micro_batch_size chunk_length chunk_len num_chunks logprob_chunk_size batch_chunk "
        "max_chunk rows_per_chunk chunk_rows"
    ),
    "text": "text completion response output raw raw_text generated decoded s completion_text response_text raw_completion "
    "generation content output_text",
    "texts": "texts completions responses outputs raw_texts decoded_texts completion_texts generations output_texts",
    "prompts": "prompts queries questions inputs prompt_texts problem_texts",
    "completions": (
        "completions responses outputs texts generations solution_strs predictions decoded_responses generated_texts "
        "samples completion_texts response_texts answers_generated decoded model_outputs sequences_str candidates"
    ),
    "answers": (
        "answers solutions ground_truths golds gold_answers targets references labels gts expected correct_answers "
        "reference_answers golden_answers gold answer solution ground_truth target label reference gt"
    ),
    "prompt": "prompt query question problem input_text",
    "completion": (
        "completion response solution_str text output model_output predict_str prediction generation generated_text "
        "completion_text response_text candidate generated sample decoded s content model_response action"
    ),
    "answer": (
        "answer ground_truth solution gold label target reference gt expected gold_answer correct_answer "
        "reference_answer ground_truth_answer expected_answer golden_answer truth"
    ),
    "operand_lists": "operand_lists numbers nums operands numbers_list nums_list available_numbers input_numbers number_lists",
    "operands": "operands numbers nums available_numbers input_numbers cards given_numbers",
    "prompt_ids": "prompt_ids prompt_input_ids prompt_tokens query_ids query_tensors query_tokens context_ids",
    "token_weights": "token_weights loss_weights weights sample_weights per_token_weights loss_weight label_weights",
    "label_smoothing": "label_smoothing smoothing label_smoothing_factor smooth_eps smoothing_eps ls_eps",
    "max_length": "max_length max_len max_seq_len max_seq_length cutoff_len max_tokens block_size seq_len max_prompt_length",
    "messages": "messages conversation chat dialogue dialog turns msgs history convo conversations message_list trajectory",
    "conversations": "conversations chats dialogues dialogs message_lists batch_messages all_messages convos",
    "sample_ids": "sample_ids",
    "prompt_id_lists": "prompt_id_lists",
    "completion_id_lists": "completion_id_lists",
    "label_lists": "label_lists",
    "mask_lists": "mask_lists",
    "prompt_lengths": "prompt_lengths prompt_lens",
    "response_template": "response_template response_marker response_prefix assistant_header response_key answer_prefix",
    "response_template_ids": (
        "response_template_ids response_token_ids response_ids_template marker_ids header_ids response_template_tokens "
        "response_marker_ids assistant_header_ids"
    ),
    "generation_prompt": "add_generation_prompt generation_prompt add_prompt for_generation with_generation_prompt",
    "instruction_template": "instruction_template instruction_marker user_header instruction_prefix",
    "answer_spans": "answer_spans response_ranges spans assistant_spans ranges response_spans turn_spans answer_ranges",
    "tokenizer": "tokenizer processing_class tok processor hf_tokenizer",
    "model": "model policy policy_model actor lm base_model net actor_model policy_net llm unwrapped_model",
    "completion_ids": "completion_ids response_ids completion_input_ids response_tokens completion_tokens",
    "prompt_mask": "prompt_mask prompt_attention_mask query_mask prompt_masks",
    "chosen_attention": "chosen_attention_mask chosen_attn_mask chosen_attention",
    "rejected_attention": "rejected_attention_mask rejected_attn_mask rejected_attention",
    "ref_model": "ref_model reference_model ref reference ref_policy reference_policy frozen_model initial_model sft_model anchor_model",
    "optimizer": "optimizer optim opt actor_optimizer policy_optimizer optimiser",
    "scheduler": "scheduler lr_scheduler sched actor_scheduler lr_sched",
    "scaler": "scaler grad_scaler amp_scaler",
    "accelerator": "accelerator accel strategy fabric",
    "loss_fn": "loss_fn criterion loss_function compute_loss_fn",
    "batches": "batches micro_batches microbatches dataloader loader batch_list train_loader micro_batch_list data_iterator iterator",
    "adapter_state": (
        "adapter_state adapter_state_dict sft_adapter lora_state lora_state_dict adapter adapter_weights lora_weights "
        "adapter_sd lora_sd sft_state adapters sft_lora sft_adapter_state init_adapter"
    ),
    "adapter_path": (
        "adapter_path adapter_dir lora_path adapter_name_or_path adapter_folder peft_path lora_dir sft_adapter_path "
        "lora_weights_path adapter_checkpoint adapter_model_path peft_model_id adapter_id"
    ),
    "model_path": (
        "model_path model_name model_name_or_path base_model_name base_model_path pretrained pretrain model_id "
        "base_model_id checkpoint model_dir base_model_name_or_path pretrained_model_name_or_path base model_ref"
    ),
    "lora_config": "lora_config peft_config adapter_config lora_cfg peft_cfg",
    "lora_targets": "target_modules targets lora_targets lora_target_modules lora_target target_names target_module_names",
    "modules_to_save": "modules_to_save full_modules save_modules trainable_modules",
    "micro_batch_size": "micro_batch_size ppo_micro_batch_size ppo_micro_batch_size_per_gpu ppo_mini_batch_size micro_train_batch_size train_micro_batch_size microbatch_size mini_batch_size minibatch_size per_device_train_batch_size mbs micro_bsz micro_bs",
    "max_grad_norm": "max_grad_norm grad_clip clip_grad max_norm gradient_clip grad_norm_clip clip_grad_norm grad_clip_norm gradient_clipping",
    "lr": "lr learning_rate actor_lr base_lr",
    "lora_r": "lora_r r rank lora_rank lora_dim",
    "lora_alpha": "lora_alpha alpha",
    "lora_dropout": "lora_dropout dropout",
    "use_rslora": "use_rslora rslora rank_stabilized rank_stabilised rs_lora",
}
ALIASES: dict[str, tuple[str, ...]] = {word: tuple(names.split()) for word, names in _SPELLINGS.items()}
"""Word -> spellings, the likeliest first. Matched after `normalise`."""

ROLE_NAMES: dict[str, dict[str, str]] = {
    "gae": {
        **dict.fromkeys(
            "rewards reward r token_level_rewards scores score rew rews b_rewards step_rewards".split(), "token_rewards"
        ),
        "mask": "completion_mask",
        "attention_mask": "completion_mask",
        "masks": "completion_mask",
        "old_values": "values",
        "value": "values",
        "t": "",
        "n": "",
        "k": "",
        "eps": "eps",
        "lambda": "lam",
        "discount": "gamma",
        "decay": "lam",
        "tau": "lam",
        "normalize": "",
        "mode": "",
        "epsilon": "eps",
        "next_state_value": "last_value",
    },
    "reward_shaping": {
        **dict.fromkeys(
            "rewards reward r score scores outcome_rewards raw_rewards rm_score raw_scores seq_scores".split(),
            "rewards",
        ),
        **dict.fromkeys(
            "token_level_scores token_scores rm_scores token_level_rewards token_rewards".split(), "token_rewards"
        ),
        "kl": "token_kl",
        "kl_ratio": "beta",
        "kl_coef": "beta",
        "value": "beta",
        "mask": "completion_mask",
        "masks": "completion_mask",
        "attention_mask": "completion_mask",
        "t": "",
        "k": "",
        "n": "",
        "eps": "eps",
        "max_length": "max_completion_length",
        "max_len": "max_completion_length",
        "l_max": "max_completion_length",
        "limit": "max_completion_length",
        "len": "buffer_length",
        "length": "lengths",
        "response_length": "lengths",
        "response_lengths": "lengths",
        "valid_response_length": "lengths",
        "completion_length": "lengths",
        "completion_lengths": "lengths",
        "num_tokens": "lengths",
        "n_tokens": "lengths",
        "clip": "reward_clip",
        "delta": "",
        "kl_penalty": "kl_estimator",
        "responses": "",
        "completion_ids": "token_ids",
        "ids": "token_ids",
        "log_probs": "logprobs",
    },
    "value_loss": {
        "mask": "completion_mask",
        "masks": "completion_mask",
        "attention_mask": "completion_mask",
        "eps": "clip_value",
        "epsilon": "clip_value",
        "clip": "clip_value",
        "clip_eps": "clip_value",
        "clip_range": "clip_value",
        "cliprange": "clip_value",
        "eps_clip": "clip_value",
        "clip_coef": "clip_value",
        "clip_ratio": "clip_value",
        "clip_epsilon": "clip_value",
        "clip_param": "clip_value",
        "delta": "huber_delta",
        "beta": "huber_delta",
        "huber_beta": "huber_delta",
        "target": "returns",
        "targets": "returns",
        "labels": "returns",
        "t": "",
        "n": "",
        "k": "",
        "r": "returns",
        "mode": "aggregation",
        "scale": "",
        "coef": "value_coef",
        "weight": "value_coef",
    },
    "logprobs": {
        "index": "token_ids",
        "indices": "token_ids",
        "labels": "token_ids",
        "target": "token_ids",
        "prompts": "",
        "mask": "completion_mask",
        "eps": "",
        "epsilon": "",
        "values": "",
        "reduction": "",
        "t": "temperature",
        "prompt_ids": "token_ids",
        "prompt_tokens": "token_ids",
        "query_ids": "token_ids",
        "prompt_input_ids": "token_ids",
        "queries": "token_ids",
        "query_tokens": "token_ids",
    },
    "entropy": {
        "k": "top_k",
        "index": "token_ids",
        "labels": "token_ids",
        "eps": "",
        "epsilon": "",
        "prompts": "",
        "values": "",
    },
    "advantages": {
        "index": "group_ids",
        "indices": "group_ids",
        "prompts": "group_ids",
        "prompt_ids": "group_ids",
        "eps": "eps",
        "epsilon": "eps",
        "mask": "completion_mask",
        "labels": "group_ids",
        "n": "group_size",
        "k": "group_size",
        "scores": "rewards",
        "token_ids": "",
        "ids": "group_ids",
        "mode": "",
        "method": "",
        "responses": "",
        "response": "",
        "completions": "",
        "old_values": "values",
    },
    "policy_loss": {
        "eps": "clip",
        "epsilon": "clip",
        "delta": "dual_clip",
        "mask": "completion_mask",
        "labels": "",
        "r": "ratio",
        "t": "",
        "tau": "",
        "method": "loss_type",
        "kind": "loss_type",
        "kl_penalty": "kl_estimator",
        "rewards": "",
        "clip_eps_c": "dual_clip",
        "k": "",
        "n": "",
        "scale": "",
        "mode": "aggregation",
        "target": "",
        "normalize": "",
        "policy": "",
        "pad": "",
    },
    "kl": {
        "kl_penalty": "kl_estimator",
        "mask": "completion_mask",
        "eps": "",
        "epsilon": "",
        "mode": "kl_estimator",
        "type": "kl_estimator",
        "method": "kl_estimator",
        "delta": "",
        "clip": "",
        "labels": "",
    },
    "completion_mask": {
        "mask": "attention_mask",
        "labels": "labels",
        "responses": "token_ids",
        "index": "",
        "padding_mask": "attention_mask",
        "t": "",
        "actions": "token_ids",
        "lengths": "lengths",
        "max_length": "",
        "target": "token_ids",
    },
    "aggregate": {
        "mask": "completion_mask",
        "attention_mask": "completion_mask",
        "completion_mask": "completion_mask",
        "labels": "labels",
        "eps": "eps",
        "epsilon": "eps",
        "loss": "token_losses",
        "losses": "token_losses",
        "values": "token_losses",
        "value": "token_losses",
        "scores": "token_losses",
        "rewards": "token_losses",
        "advantages": "token_losses",
        "logprobs": "token_losses",
        "entropies": "token_losses",
        "entropy": "token_losses",
        "kl": "token_losses",
        "objective": "token_losses",
        "log_probs": "token_losses",
        "num_items": "token_count",
        "normalizer": "token_count",
        "global_tokens": "token_count",
        "total_valid_tokens": "token_count",
        "n": "",
        "k": "",
        "t": "",
        "scale": "",
    },
    "importance_weights": {
        "mask": "completion_mask",
        "attention_mask": "completion_mask",
        "eps": "eps",
        "epsilon": "eps",
        "t": "",
        "k": "",
        "n": "",
        "level": "ratio_level",
        "rollout_is": "ratio_level",
        "clip": "weight_cap",
        "clip_coeff": "weight_cap",
        "clip_coef": "weight_cap",
        "clip_param": "weight_cap",
        "clip_range": "weight_bounds",
        "student_log_probs": "logprobs",
        "student_logprobs": "logprobs",
        "eps_clip": "weight_cap",
        "clip_high": "weight_cap",
        "eps_clip_high": "weight_cap",
        "epsilon_high": "weight_cap",
        "clip_ratio_high": "weight_cap",
        "ratio_clip_max": "weight_cap",
        "rollout_rs_threshold": "weight_cap",
        "delta": "weight_cap",
        "clip_low": "weight_floor",
        "eps_clip_low": "weight_floor",
        "epsilon_low": "weight_floor",
        "clip_ratio_low": "weight_floor",
        "ratio_clip_min": "weight_floor",
        "rollout_rs": "weight_mode",
        "clip_ratio": "weight_cap",
        "loss": "token_losses",
        "pg_loss": "token_losses",
        "log_p": "logprobs",
        "log_q": "rollout_logprobs",
        "new": "logprobs",
        "gen_logprobs": "rollout_logprobs",
        "generation_logprobs": "rollout_logprobs",
    },
    "sft_loss": {
        "labels": "labels",
        "label": "labels",
        "label_ids": "labels",
        "targets": "labels",
        "target": "labels",
        "shift_labels": "labels",
        "target_ids": "labels",
        "input_ids": "token_ids",
        "tokens": "token_ids",
        "mask": "completion_mask",
        "eps": "",
        "epsilon": "",
        "t": "",
        "k": "",
        "n": "",
        "gamma": "",
        "alpha": "",
        **dict.fromkeys("is_answer is_target is_trained is_response answer_tokens train_on".split(), "completion_mask"),
        "weights": "token_weights",
        "values": "",
        "reduction": "",
        "y": "labels",
        "index": "labels",
        "source": "logits",
        "num_items": "token_count",
        "normalizer": "token_count",
        "total_valid_tokens": "token_count",
        "num_valid_tokens": "token_count",
        "num_label_tokens": "token_count",
        "completions": "",
        "prompts": "",
        "smoothing": "label_smoothing",
        "temperature": "",
        "beta": "",
        "scale": "",
    },
    "sft_labels": {  # what comes as ids, and what as text
        **dict.fromkeys("input_ids ids token_ids tokens full_ids sequence sequences encoded".split(), "sample_ids"),
        **dict.fromkeys(
            "prompt_ids prompt_input_ids prompt_tokens query_ids source_ids context_ids question_ids prompt_token_ids "
            "instruction_ids".split(),
            "prompt_id_lists",
        ),
        **dict.fromkeys(
            "completion_ids response_ids answer_ids target_ids output_ids completion_tokens response_tokens "
            "completion_input_ids response_input_ids completion_token_ids response_token_ids answer_tokens".split(),
            "completion_id_lists",
        ),
        **dict.fromkeys("labels label label_ids".split(), "label_lists"),
        **dict.fromkeys(
            "loss_mask completion_mask assistant_mask assistant_masks mask masks response_mask train_mask "
            "trainable_mask target_mask is_trained loss_masks assistant_tokens_mask".split(),
            "mask_lists",
        ),
        **dict.fromkeys(
            "prompt_length prompt_len prompt_lens prompt_lengths source_len source_lens num_prompt_tokens prompt_size "
            "context_length context_len source_length input_len query_len query_length n_prompt".split(),
            "prompt_lengths",
        ),
        **dict.fromkeys(
            "response_ranges spans assistant_spans ranges response_spans turn_spans answer_ranges answer_spans "
            "loss_spans train_spans target_spans assistant_ranges loss_ranges segments".split(),
            "answer_spans",
        ),
        **dict.fromkeys(
            "messages conversation chat dialogue dialog turns msgs history convo conversations message_list".split(),
            "messages",
        ),
        **dict.fromkeys("prompt question query instruction source problem user user_message input".split(), "prompt"),
        **dict.fromkeys(
            "completion response answer output target solution reply assistant chosen assistant_message".split(),
            "completion",
        ),
        **dict.fromkeys("prompts questions queries instructions sources problems".split(), "prompts"),
        **dict.fromkeys("pairs qa_pairs text_pairs prompt_answer_pairs prompt_response_pairs".split(), "prompts"),
        **dict.fromkeys("completions responses answers outputs targets solutions replies".split(), "completions"),
        **dict.fromkeys("text full_text rendered formatted".split(), "text"),
        **dict.fromkeys("texts full_texts".split(), "texts"),
        **dict.fromkeys(
            "max_length max_len max_seq_len max_seq_length cutoff_len max_tokens block_size seq_len seq_length".split(),
            "max_length",
        ),
        "attention_mask": "attention_lists",
        "pad_token": "",
        "eos_token": "",
        "tools": "",
        "system": "",
        "n": "",
        "k": "",
        "t": "",
        "index": "",
        "indices": "",
        "lengths": "sample_lengths",
        "length": "sample_lengths",
        "eps": "",
        "pad_to": "",
        "pad": "pad_token_id",
    },
    "chat_tokens": {
        **dict.fromkeys(
            "messages conversation chat dialogue dialog turns msgs history convo message_list prompt trajectory "
            "message".split(),
            "messages",
        ),
        **dict.fromkeys(
            "conversations chats prompts batch_messages dialogues batch message_lists all_messages".split(),
            "conversations",
        ),
        **dict.fromkeys(
            "max_length max_len max_seq_len max_prompt_length max_tokens max_prompt_len max_prompt_tokens "
            "truncate_to".split(),
            "max_length",
        ),
        "mask": "",
        "labels": "",
        "eos_token": "",
        "pad_token": "",
        "tools": "",
        "system": "",
        "n": "",
        "k": "",
        "t": "",
        "index": "",
        "responses": "",
        "response": "",
        "completion": "",
        "completions": "",
        "input_ids": "",
    },
    "decode": {
        **dict.fromkeys(
            "messages conversation chat dialogue dialog turns msgs history convo message_list".split(), "messages"
        ),
        "completion": "text",
        "completions": "texts",
        "response": "text",
        "responses": "texts",
        "output": "text",
        "outputs": "texts",
        "sequences": "token_ids",
        "tokens": "token_ids",
        "ids": "token_ids",
        **dict.fromkeys(
            "row rows output_row response_row rollout_ids generated generated_ids out_ids".split(), "token_ids"
        ),
        "mask": "completion_mask",
        "s": "text",
        "labels": "token_ids",
    },
    "train_step": {
        **{f"{w}{end}": f"{w}_ids" for w in ("chosen", "rejected") for end in ("", "_ids", "_input_ids", "_tokens")},
        **{
            f"{w}{end}": f"{w}_mask"
            for w in ("chosen", "rejected")
            for end in ("_mask", "_loss_mask", "_completion_mask", "_response_mask")
        },
        **{f"{w}{end}": f"{w}_attention" for w in ("chosen", "rejected") for end in ("_attention_mask", "_attn_mask")},
        **{
            f"{front}_{w}_{end}": f"ref_{w}_logprobs"
            for w in ("chosen", "rejected")
            for front in ("ref", "reference")
            for end in ("logps", "logprobs", "logp", "log_probs")
        },
        "batch": "",
        "data": "",
        "inputs": "",
        "input_ids": "token_ids",
        "ids": "token_ids",
        "tokens": "token_ids",
        "sequences": "token_ids",
        "labels": "labels",
        "mask": "completion_mask",
        "response_ids": "completion_ids",
        "completion_ids": "completion_ids",
        "responses": "completion_ids",
        "completions": "completion_ids",
        "response_tokens": "completion_ids",
        "completion_tokens": "completion_ids",
        "prompts": "prompt_ids",
        "queries": "prompt_ids",
        "query_ids": "prompt_ids",
        "prompt_ids": "prompt_ids",
        "ref": "ref_model",
        "reference": "ref_model",
        "eps": "clip",
        "epsilon": "clip",
        "micro_batch_size": "micro_batch_size",
        "loss": "",
        "losses": "",
        "returns": "",
        "values": "",
        "old": "old_logprobs",
        "state": "",
        "t": "",
        "k": "accumulation_steps",
        "n": "",
        "g": "",
        "r": "",
        "scale": "",
        "scores": "rewards",
        "actions": "completion_ids",
        "targets": "labels",
        "target": "labels",
        "x": "",
        "h": "",
        "y": "labels",
        "index": "",
    },
    "model_factory": {
        "r": "lora_r",
        "rank": "lora_r",
        "alpha": "lora_alpha",
        "base": "model",
        "model": "model",
        "base_model": "model",
        "ref": "ref_model",
        "reference": "ref_model",
        "targets": "lora_targets",
        "target": "lora_targets",
        "checkpoint": "model_path",
        "pretrained": "model_path",
        "policy": "model",
        "state": "",
        "scale": "",
    },
    "extract_answer": {
        **dict.fromkeys(
            "answer solution pred prediction predict_str string ans reply content msg message s x sol".split(),
            "completion",
        ),
        **dict.fromkeys(
            "raw_output llm_output model_answer model_text raw_answer student_answer full_text".split(), "completion"
        ),
        **dict.fromkeys("answers solutions preds predictions strings replies".split(), "completions"),
        **dict.fromkeys("label target gold gt ground_truth reference expected truth gold_answer".split(), "answer"),
        "inputs": "completion",
        "input": "completion",
        "tokens": "",
        "sample": "completion",
        "value": "completion",
        "string_in": "completion",
    },
    "reward": {
        **dict.fromkeys(
            "test tests test_list test_lists unit_test unit_tests test_cases test_code verification_info".split(),
            "answer",
        ),
        **dict.fromkeys(
            "expected_calls expected_tool_calls gold_calls expected_call expected_tool_call gold_call".split(), "answer"
        ),
        **dict.fromkeys("input_output verification_infos assertions public_tests hidden_tests".split(), "answer"),
        "labels": "answers",
        "label": "answer",
        "target": "answer",
        "targets": "answers",
        "responses": "completions",
        "response": "completion",
        "texts": "completions",
        "text": "completion",
        "samples": "completions",
        "goal": "answer",
        "goals": "answers",
        "eos_token": "",
        "end_token": "",
        "outputs": "completions",
        "output": "completion",
        "queries": "prompts",
        "reference": "answer",
        "index": "",
        "completion": "completion",
        "completions": "completions",
        "mask": "",
        "eps": "",
        "n": "",
        "scores": "",
    },
}
"""Role -> spelling -> what it means there, before any other rule; an empty word: nothing that a probe knows."""

INERT: dict[str, object] = {
    "dp_size": 1, "world_size": 1, "num_processes": 1, "gradient_accumulation_steps": 1, "steps_per_generation": 1,
    "current_gradient_accumulation_steps": 1, "num_iterations": 1, "grad_accum_steps": 1, "rank": 0, "local_rank": 0,
    "process_index": 0, "global_step": 0, "step": 0, "device": "cpu", "tp_group": None, "process_group": None, "group": None,
    "dp_group": None, "reduce_group": None, "cp_size": 1, "tp_size": 1, "sp_size": 1, "accumulation_steps": 1,
    "train_on_inputs": False, "train_on_prompt": False, "mask_history": False, "mask_prompt": True,
    "label_pad_token_id": -100, "ignore_index": -100, "num_micro_batches": 1, "n_micro_batches": 1,
    "mask_truncated_completions": True, "mask_truncated": True, "drop_truncated": True, "overlong_filtering": True,
}  # fmt: skip
"""Things of the surroundings that have one plain value in a single process."""

ASIDE: dict[str, object] = {
    "data_source": "unknown", "dataset": "unknown", "dataset_name": "unknown", "task": "unknown", "task_name": "unknown",
    "task_type": "unknown", "extra_info": {}, "metadata": {}, "meta": {}, "info": {}, "trainer_state": None,
    "state": {}, "states": {}, "parser": None, "num_examine": 0, "tool_schemas": [], "turn_idx": 0,
    "eos_token": "<eos>", "end_token": "<eos>",
    "sandbox_fusion_url": None, "concurrent_semaphore": None, "reward_router_address": None, "args": None,
}  # fmt: skip
"""What comes along with a completion and has no part in its score."""

WHOLE_GOLDS = frozenset(
    "expected_calls expected_tool_calls gold_calls expected_call expected_tool_call gold_call tests test_list test_cases "
    "unit_tests verification_info input_output".split()
)
"""Gold answers that are records of a form of their own, and are handed over in one piece."""

OPTION_LETTERS = frozenset(
    "choices options valid_choices valid_options valid_answers letters labels all_choices option_letters".split()
)
"""What an extractor of option letters gets besides the text."""

FLAG = re.compile(
    r"^_?(use|is|has|enable|do|with|return|log|compute|should|apply|include|debug|verbose|track|save)_|_enabled$|_only$|^verbose$|^debug$"
    r"|^(gradient_checkpointing|load_in_[48]bit|bf16|fp16|tf32|trust_remote_code|flash_attention)$"
)
"""Names of switches: off unless the class says otherwise."""

CONFIG_NAMES = frozenset(
    "config cfg args hparams algo_config loss_config algorithm_config conf opt options params training_args settings "
    "script_args hp grpo_config ppo_config trainer_config loss_cfg train_config".split()
)
CONTAINER_NAMES = frozenset(
    "batch inputs data experience exp experiences rollout_data train_example sample samples episode episodes micro_batch "
    "minibatch mb rollouts rollout trajectory trajectories example examples loss_inputs buffer transitions traj item items b".split()
)

_SYNONYMS = {
    "logps": "logprob", "logp": "logprob", "lps": "logprob", "lp": "logprob", "logprobs": "logprob", "logprob": "logprob",
    "logpi": "logprob", "reference": "ref", "base": "ref", "references": "ref", "refs": "ref",
    "prev": "old", "previous": "old", "prox": "old", "proximal": "old", "anchor": "old",
    "rollout": "rollout", "sampling": "rollout", "sampler": "rollout", "vllm": "rollout", "gen": "rollout",
    "generation": "rollout", "generator": "rollout", "inference": "rollout", "infer": "rollout", "behavior": "rollout",
    "behaviour": "rollout", "behav": "rollout", "mu": "rollout", "engine": "rollout", "sglang": "rollout", "sampled": "rollout",
    "advs": "advantage", "adv": "advantage", "advantages": "advantage", "rewards": "reward", "scores": "score",
    "masks": "mask", "values": "value", "logits": "logit", "lens": "length", "lengths": "length", "len": "length",
    "resp": "response", "responses": "response", "completions": "completion", "actions": "action", "toks": "token", "tokens": "token",
    "tok": "token", "idx": "index", "attn": "attention", "coeff": "coef", "coefficient": "coef", "eps": "epsilon",
    "returns": "return", "entropies": "entropy", "uids": "uid", "groups": "group",
}  # fmt: skip
_NOISE = frozenset(
    "batch batched per all the my raw b mb cur curr current new policy pi actor train trainer tensor list arr array np pt tok_level input x flat padded local micro tot total final".split()
)
_SHAPE_SUFFIX = re.compile(r"_(?:[BTVNSLGPDHC]{1,4}|bt|btv|bs|bl|blv|bsv|np|pt|list|tensor|arr|lst)$")


@dataclass(frozen=True, kw_only=True)
class Match:
    """What a name means and by which rule."""

    word: str
    how: str
    """`name`, `normalised name`, `annotation`, `docstring`, `similar name`."""
    inverted: bool = False
    """A mask whose 1 marks what is NOT wanted."""


def snake(name: str) -> str:
    """`logProbs_BT`, `_per_token_LogProbs` -> `log_probs`, `per_token_log_probs`."""
    name = _SHAPE_SUFFIX.sub("", name)
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    name = re.sub(r"(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"_+", "_", name.lower()).strip("_")


def tokens(name: str) -> tuple[str, ...]:
    """The parts of a name, synonyms made one: `policy_per_token_logps` -> `policy per token logprob`."""
    text = snake(name).replace("log_probs", "logprob").replace("log_prob", "logprob").replace("log_ps", "logprob")
    text = text.replace("log_pi", "logprob").replace("log_p_", "logprob_")
    if text.endswith("log_p"):
        text = text[:-5] + "logprob"
    return tuple(_SYNONYMS.get(part, part) for part in text.split("_") if part)


def normalise(name: str) -> str:
    """A name without the parts that carry no meaning, in the singular."""
    parts = [p for p in tokens(name) if p not in _NOISE]
    parts = [p for p in parts if not (p == "token" and "logprob" in parts)]
    text = "_".join(parts) or snake(name)
    return text[:-1] if text.endswith("s") and not text.endswith("ss") and len(text) > 3 else text


_EXACT: dict[str, list[str]] = {}
_NORMAL: dict[str, list[str]] = {}
for _word, _names in ALIASES.items():
    for _name in _names:
        _EXACT.setdefault(_name, []).append(_word)
        _key = normalise(_name)
        if _word not in _NORMAL.setdefault(_key, []):
            _NORMAL[_key].append(_word)

_ROLE_PREFERENCE: dict[str, tuple[str, ...]] = {
    "value_loss": ("old_values", "returns", "values", "clip_value"),
    "gae": ("token_rewards", "values", "next_values", "last_value"),
    "reward_shaping": ("rewards", "token_rewards", "lengths"),
    "reward": ("completions", "prompts", "answers", "completion", "prompt", "answer"),
    "decode": ("text", "texts", "token_ids", "tokenizer"),
    "extract_answer": ("completion", "completions", "text", "texts", "prompt", "answer"),
    "advantages": ("rewards", "token_rewards", "group_ids", "group_size", "eps", "values"),
    "policy_loss": ("clip", "logprobs"),
}
_LIST_WORDS = {
    "completion": "completions", "prompt": "prompts", "answer": "answers", "text": "texts", "operands": "operand_lists",
    "messages": "conversations",
}  # fmt: skip


def resolve(name: str, role: str, takes: Collection[str], doc: str = "", annotation: str = "") -> Match | None:
    """The word that `name` means as an input of a function of that role, or None.

    `takes` are the words that the role knows; `doc` is what the docstring says of this name.
    """
    plain = snake(name)
    special = ROLE_NAMES.get(role, {})
    if role == "policy_loss" and other_bound(plain) and "clip_value" not in _EXACT.get(plain, ()):
        return None
    for key, how in ((plain, "name"), (normalise(name), "normalised name")):
        if key in special:
            word = special[key]
            return _match(word, how, name, doc) if word in takes else None
    exact = _pick(_EXACT.get(plain, ()), role, takes)
    if exact:
        return _match(exact, "name", name, doc)
    normal = _pick(_NORMAL.get(normalise(name), ()), role, takes)
    if normal:
        return _match(normal, "normalised name", name, doc)
    annotated = _from_annotation(annotation, takes)
    if annotated:
        return _match(annotated, "annotation", name, doc)
    documented = _from_words(doc, role, takes)
    if documented:
        return _match(documented, "docstring", name, doc)
    similar = _from_family(tokens(name), role, takes)
    return _match(similar, "similar name", name, doc) if similar else None


_BOUNDS = frozenset("clip clips clipping cliprange cap caps threshold thresh eps epsilon bound max min".split())
_BOUNDED = {
    **dict.fromkeys("tis mis is iw imp icepop sampler sampling rollout behav behave behavior behaviour".split(), 2.0),
    **dict.fromkeys("trunc truncation truncated truncate".split(), 2.0),
    **dict.fromkeys("grad grads gradient".split(), 1.0),
    **dict.fromkeys("value values vf vloss critic cov norm reward rewards kl temperature entropy".split(), None),
}


def other_bound(name: str) -> bool:
    """Whether a bound is on something else than the importance ratio of the policy: `tis_clip`, `clip_cov_ratio`."""
    parts = set(snake(name).split("_"))
    return bool(parts & (_BOUNDS - {"max", "min"})) and bool(parts & set(_BOUNDED))


def neutral_bound(name: str) -> float | None:
    """A value at which such a bound changes little; None where there is none."""
    parts = set(snake(name).split("_"))
    if not other_bound(name):
        return None
    value = next((_BOUNDED[p] for p in snake(name).split("_") if p in _BOUNDED), None)
    return 0.0 if value == 2.0 and parts & {"low", "lower", "lo", "min"} else value


_CURRENT = frozenset("cur curr current new newlogprob newlogprobs newlogp newlogps pi policy actor".split())


def is_current(name: str) -> bool:
    """Whether a log-prob's name says that it is of the weights being trained: `cur_log_probs`, `new_logps`."""
    return bool(set(snake(name).split("_")) & _CURRENT)


def logprob_word(name: str) -> str:
    """Which log-probs a name spells, whatever the role; empty where it spells none."""
    words = ("logprobs", "old_logprobs", "ref_logprobs", "rollout_logprobs")
    match = resolve(name, "policy_loss", words)
    exact = match is not None and match.how in ("name", "normalised name")
    return match.word if match is not None and exact and "logprob" in tokens(name) else ""


def as_list(word: str) -> str:
    """`completion` -> `completions`."""
    return _LIST_WORDS.get(word, word)


def as_single(word: str) -> str:
    """`completions` -> `completion`."""
    return next((k for k, v in _LIST_WORDS.items() if v == word), word)


def spellings(word: str) -> tuple[str, ...]:
    return ALIASES.get(word, (word,))


def is_flag(name: str) -> bool:
    return FLAG.search(snake(name)) is not None or FLAG.search(name) is not None


def _pick(words: Iterable[str], role: str, takes: Collection[str]) -> str:
    known = [w for w in words if w in takes]
    for word in _ROLE_PREFERENCE.get(role, ()):
        if word in known:
            return word
    return known[0] if known else ""


def _match(word: str, how: str, name: str, doc: str) -> Match:
    return Match(word=word, how=how, inverted=word.endswith("_mask") and _inverted(name, doc))


_KEEPS = re.compile(
    r"(?:1|true|ones?)\s*(?:=|:|-|for|on|at|means|marks|where|is|if|indicat\w*)*\s*(?:the |a |all |any )?"
    r"(?:real|valid|train\w*|keep|kept|participat\w*|includ\w*|token|action|respon|complet|not pad|non-?pad|sampled)", re.I
)  # fmt: skip
_DROPS = re.compile(
    r"(?:1|true|ones?)\s*(?:=|:|-|for|on|at|means|marks|where|is|if|indicat\w*)*\s*(?:the |a |all |any )?"
    r"(?:pad|ignor|masked|exclud|drop|filler|not train|prompt)", re.I
)  # fmt: skip


def _inverted(name: str, doc: str) -> bool:
    if _DROPS.search(doc):
        return not _KEEPS.search(doc)
    if _KEEPS.search(doc):
        return False
    parts = set(tokens(name))
    return "mask" in parts and bool(parts & {"pad", "padding", "ignore", "invalid", "drop"})


_DOC_RULES: tuple[tuple[str, str], ...] = (
    (r"(reference|frozen|base)\b.*\blog|\blog-?\s?prob.*(reference|frozen)", "ref_logprobs"),
    (r"(sampler|inference engine|rollout engine|behaviou?r|vllm|generat\w+ time)\b.*\blog|\blog-?\s?prob.*(sampler|engine)", "rollout_logprobs"),
    (r"\b(old|previous|rollout)\b.*\blog-?\s?prob|\blog-?\s?prob.*\b(old|previous)\b", "old_logprobs"),
    (r"(current|new|trained|policy)\b.*\blog-?\s?prob|\blog-?\s?prob.*(current|new|being trained|policy)|per-token log-?\s?prob", "logprobs"),
    (r"\blogits\b", "logits"),
    (r"\badvantages?\b", "advantages"),
    (r"(samples|completions|rollouts|generations|responses|answers) (per|for each|of each|of a|a) (prompt|question|problem|group)|group size", "group_size"),
    (r"(prompt|group|question|problem)\s?(u?id|index|key)|(which|what) (prompt|group)|uid of|id of (its|the) (prompt|group)", "group_ids"),
    (r"\b(rewards?|scores?|returns? of)\b", "rewards"),
    (r"attention mask|real tokens? of|0 on padding|1 (on|for) (every )?real", "attention_mask"),
    (r"\bmask\b|1 (on|for|=) (the )?(train|sampled|completion|response|action)", "completion_mask"),
    (r"end.of.sequence|\beos\b|end token", "eos_token_id"),
    (r"\bpad(ding)? (token|id)", "pad_token_id"),
    (r"token ids?\b|sampled tokens|\bids of", "token_ids"),
    (r"\bkl\b.*(weight|coef|strength)|(weight|coef\w*|strength) of the kl", "beta"),
    (r"clip\w* (range|distance|bound|epsilon)|trust region", "clip"),
    (r"\btemperature\b", "temperature"),
    (r"(gold|correct|reference|right|true|expected) (answer|solution|label|class|value)|ground.truth", "answer"),
)  # fmt: skip


def _from_words(doc: str, role: str, takes: Collection[str]) -> str:
    if not doc:
        return ""
    for pattern, word in _DOC_RULES:
        if re.search(pattern, doc, re.I | re.S):
            if role == "reward" and word == "answer":
                word = "answer" if "answer" in takes else "answers"
            if word in takes:
                return word
    return ""


def _from_annotation(annotation: str, takes: Collection[str]) -> str:
    if "Tokenizer" in annotation and "tokenizer" in takes:
        return "tokenizer"
    if re.search(r"PreTrainedModel|CausalLM", annotation) and "model" in takes:
        return "model"
    return ""


def _from_family(parts: tuple[str, ...], role: str, takes: Collection[str]) -> str:  # noqa: C901, PLR0912  a flat table
    """The word of the family that a name belongs to, where the family is beyond doubt."""
    have = set(parts)
    if have & {
        "chosen",
        "rejected",
        "teacher",
        "student",
        "num",
        "max",
        "min",
        "fn",
        "func",
        "std",
        "mean",
        "weights",
        "weight",
        "coef",
        "baseline",
        "baselines",
    }:
        return ""
    guess = ""
    if role in ("chat_tokens", "sft_labels") and have & {"messages", "conversation", "chat", "dialog", "dialogue"}:
        return "messages"
    if "logprob" in have:
        order = (("ref", "ref_logprobs"), ("old", "old_logprobs"), ("rollout", "rollout_logprobs"))
        plain = not (
            have - {"logprob", "token", "completion", "response", "action", "sequence", "target", "output"} - _NOISE
        )
        guess = next((word for key, word in order if key in have), "logprobs" if plain else "")
    elif "mask" in have:
        guess = "attention_mask" if have & {"attention", "input", "prompt"} else "completion_mask"
    elif "advantage" in have:
        guess = "advantages"
    elif "logit" in have:
        guess = "logits"
    elif have & {"reward", "score"}:
        guess = "token_rewards" if "token" in have else "rewards"
    elif have & {"uid", "group"} and role == "advantages":
        guess = "group_size" if have & {"size", "n"} else "group_ids"
    elif "eos" in have:
        guess = "eos_token_id"
    elif "pad" in have and have & {"id", "token"} and "label" not in have:
        guess = "pad_token_id"
    elif have & {"ids", "token"} and have & {
        "completion",
        "response",
        "output",
        "target",
        "sampled",
        "generated",
        "input",
        "action",
    }:
        guess = "token_ids"
    elif "clip" in have or ("epsilon" in have and role == "policy_loss"):
        low, high = have & {"low", "lower", "lo", "min"}, have & {"high", "higher", "upper", "hi", "max"}
        guess = "clip_low" if low else "clip_high" if high else "clip"
    elif "kl" in have and role != "kl":
        guess = "beta" if have & {"beta", "ctl"} else ""
    elif role == "reward" and have & {"gold", "truth", "answer", "solution"}:
        guess = "answer"
    elif role in ("reward", "decode") and have & {"completion", "response", "output", "text"}:
        guess = "completion" if role == "reward" else "text"
    if guess in ("answer", "completion", "text") and guess not in takes:
        guess = as_list(guess)
    return guess if guess in takes else ""


# Words in which settings that choose a formula are written

CHOICES: dict[str, dict[str, tuple[str, ...]]] = {
    "kl_estimator": {
        "k1": ("k1", "kl", "K1"),
        "k2": ("k2", "mse", "mse_kl", "K2"),
        "k3": ("k3", "low_var_kl", "K3", "low_variance", "schulman"),
        "abs": ("abs",),
    },
    "aggregation": {
        "token-mean": ("token-mean", "token_mean", "token", "dapo", "bnpo", "mean_token"),
        "sequence-mean": ("seq-mean-token-mean", "sequence-mean", "sequence_mean", "seq_mean", "seq-mean", "sequence", "grpo", "sample-mean"),
        "sequence-sum": ("seq-mean-token-sum", "sequence-sum", "sequence_sum", "seq_sum"),
        "constant": ("constant", "dr_grpo", "seq-mean-token-sum-norm", "fixed"),
    },
    "preference_type": {
        "dpo": ("sigmoid", "dpo", "vanilla", "logistic"),
        "dpo_norm": ("dpo_norm", "sigmoid_norm"),
        "ipo": ("ipo",),
        "hinge": ("hinge", "slic", "rso"),
        "simpo": ("simpo",),
        "orpo": ("orpo",),
        "cpo": ("cpo", "sigmoid"),
        "kto": ("kto_pair", "kto"),
        "robust": ("robust",),
        "cdpo": ("cdpo",),
        "bco": ("bco_pair", "bco"),
        "sppo": ("sppo_hard", "sppo"),
        "nca": ("nca_pair", "nca"),
        "exo": ("exo_pair", "exo"),
        "aot": ("aot", "aot_pair"),
        "aot_unpaired": ("aot_unpaired",),
        "apo_zero": ("apo_zero",),
        "apo_down": ("apo_down",),
        "discopop": ("discopop",),
    },
    "ratio_level": {
        "token": ("token", "tok", "token-level", "token_level"),
        "sequence": ("sequence", "seq", "sequence-level", "sequence_level"),
        "geometric": ("geometric", "geo", "geo_mean", "geometric_mean"),
    },
    "weight_mode": {
        "truncate": ("truncate", "clip", "tis", "cap", "truncated"),
        "mask": ("mask", "mis", "icepop", "drop", "reject", "filter"),
        "token truncate": ("token_truncate",),
        "token mask": ("token_mask",),
        "sequence truncate": ("sequence_truncate", "seq_truncate"),
        "sequence mask": ("sequence_mask", "seq_mask", "seq-mask-tis"),
    },
    "loss_type": {
        name: (name,)
        for name in ("grpo", "dapo", "bnpo", "dr_grpo", "cispo", "gspo", "ppo", "reinforce", "sapo", "vanilla", "luspo")
    },
}  # fmt: skip


def canonical_choice(word: str, value: object) -> object:
    """The canonical word for a user's spelling of a choice; the value itself where there is none."""
    for canonical, names in CHOICES.get(word, {}).items():
        if value in names:
            return canonical
    return value


def choice_word(literals: Collection[str], role: str) -> str:
    """Which choice a parameter makes, judged by the strings that it is compared with."""
    lowered = {x.lower() for x in literals}
    words = ("kl_estimator", "aggregation", "ratio_level", "loss_type")
    if role == "importance_weights":
        words = ("ratio_level", "weight_mode")
    for word in words:
        known = {n.lower() for names in CHOICES[word].values() for n in names}
        if word == "aggregation":
            known -= {"grpo", "dapo", "bnpo", "dr_grpo", "token", "sequence"} if role != "aggregate" else set()
        if len(lowered & known) >= (2 if word != "aggregation" else 1) and not (word == "loss_type" and role == "kl"):
            return word
    return ""


def spelled(word: str, value: object, literals: Collection[str]) -> object:
    """The user's spelling of `value`, chosen among the strings that the source compares with."""
    names = CHOICES.get(word, {}).get(str(value), ())
    return next((x for n in names for x in literals if x.lower() == n.lower()), value)
